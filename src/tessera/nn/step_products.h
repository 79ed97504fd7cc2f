// Weights as decoding's steps (decode_step.h) read them: small ones as float32, and products whose
// columns the threads of a team share out.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <span>

#include "tessera/base/team.h"
#include "tessera/kernels/weights/digits.h"
#include "tessera/nn/parts.h"

namespace tessera::nn {

/// The numbers of a small weight as float32: its own memory where that holds them so, which
/// training may write, else a copy. What a weight gives as a tensor may itself be a copy: its
/// storage decides.
class StepNumbers {
 public:
  StepNumbers() = default;
  explicit StepNumbers(WeightPtr weight);
  explicit StepNumbers(const Tensor& numbers)
      : copy_(numbers.to(at::kCPU, at::kFloat).contiguous()) {}
  /// Null where there are none.
  const float* data() const {
    return copy_.defined()      ? copy_.const_data_ptr<float>()
           : weight_ != nullptr ? static_cast<const float*>(weight_->data())
                                : nullptr;
  }
  /// Whether they stay those of the weight: no training changes what was copied.
  static bool stay(const WeightPtr& weight);

 private:
  WeightPtr weight_;
  Tensor copy_;
};

/// y = W x + b, or one such product for each of several matrices: experts [E, O, I], or heads whose
/// matrices are rows of one weight [H * O, I].
struct StepProduct {
  WeightPtr weight;
  StepNumbers bias;
  kernels::Arithmetic arithmetic = kernels::Arithmetic::float32;  // how it reads x
  int64_t matrices = 1;
  /// Of one matrix.
  int64_t rows() const { return by_axis() ? weight->size(1) : weight->size(0) / matrices; }
  int64_t width() const { return weight->shape().back(); }
  /// The order of the columns of a matrix (Weight::columns()); null where it is theirs.
  const int32_t* columns(int64_t matrix) const {
    const int32_t* all = weight->columns();
    return all == nullptr || !by_axis() ? all : all + matrix * width();
  }

 private:
  bool by_axis() const { return weight->shape().size() == 3; }
};

/// Takes the weights of a part for its step; serve(): whether all of them can be used.
class StepWeights {
 public:
  /// `products`: those of the calls that the step will serve.
  explicit StepWeights(const ops::ProductSettings& products) : products_(products) {}
  const ops::ProductSettings& products() const { return products_; }
  StepNumbers numbers(const WeightPtr& weight);
  /// What a weight gives by a function, which it stays as long as it is not trained.
  template <class Make>
  StepNumbers follows(const WeightPtr& weight, const Make& make) {
    serve_ = serve_ && weight->parts() == nullptr && !weight->trainable();
    const at::NoGradGuard as_in_calls;
    return serve_ ? StepNumbers(make()) : StepNumbers();
  }
  /// A norm's step, which there must be.
  std::shared_ptr<const NormStep> norm(const Norm& norm);
  /// A matrix, or those of experts.
  StepProduct product(const Linear& linear);
  /// A matrix for each of `heads` heads, without bias (ops::head_linear).
  StepProduct heads(const WeightPtr& weight, int64_t heads);
  /// Products of the same rows, which are rounded and put in order once for all of them. Here and
  /// below, null ones are left out, but for the first.
  void alike(std::initializer_list<const StepProduct*> products);
  bool serve() const { return serve_; }

 private:
  ops::ProductSettings products_;
  bool serve_ = true;
};

/// Rows that products read: as they are, in the order in which columns of weights lie, and in
/// digits where a weight asks for them.
class StepInput {
 public:
  /// What `memory` has, aligned to a cache line.
  static int64_t floats(int64_t rows, int64_t width);
  /// `offsets`: rows [offsets[m], offsets[m + 1]) meet matrix m of the products; empty: all rows
  /// meet the only one.
  StepInput(const float* x,
            int64_t rows,
            int64_t width,
            float* memory,
            std::span<const int64_t> offsets = {});
  /// Orders and rounds this thread's rows for `products`, which all see after a wait(); false where
  /// they are read as they are. The products are alike().
  bool prepare(const Team& team, std::initializer_list<const StepProduct*> products);
  /// Columns [begin, end) of y [rows, stride], in the rows that meet `matrix`.
  void times(const StepProduct& product,
             int64_t matrix,
             int64_t begin,
             int64_t end,
             float* y,
             int64_t stride) const;
  int64_t matrices() const {
    return offsets_.empty() ? 1 : static_cast<int64_t>(offsets_.size()) - 1;
  }
  Team::Share rows_of(int64_t matrix) const {
    if (offsets_.empty()) return {0, rows_};
    const auto m = static_cast<size_t>(matrix);
    return {offsets_[m], offsets_[m + 1]};
  }

 private:
  const float* x_;
  int64_t rows_, width_;
  float* memory_;
  std::span<const int64_t> offsets_;
  std::optional<kernels::RoundedRows> digits_;
};

/// Null where there is none.
inline const StepProduct* as_given(const std::optional<StepProduct>& product) {
  return product ? &*product : nullptr;
}

struct StepTarget {
  const StepProduct* product;  // null: left out
  float* y;
  const StepInput* x = nullptr;  // null: the rows of the call of multiply()
  int64_t stride = 0;            // between rows of y; 0: product->rows()
};

/// The products of the same rows, or of each target's, with several weights: columns shared out
/// among the threads.
void multiply(const Team& team, const StepInput& x, std::initializer_list<StepTarget> targets);

}  // namespace tessera::nn
