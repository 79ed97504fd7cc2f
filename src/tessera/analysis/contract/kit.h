// What the checks share: models with weights that give errors nowhere to hide, calls, comparisons.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/analysis/contract/cases.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/scratch.h"
#include "tessera/model/model.h"
#include "tessera/model/plan.h"

namespace tessera::contract {

using Ids = std::vector<int64_t>;
using Rows = std::vector<Ids>;

/// Collects what a check finds wrong, so that an excepted check can be shown to fail.
class Report {
 public:
  template <class... Args>
  void expect(bool holds, fmt::format_string<Args...> format, Args&&... args) {
    if (!holds) failures_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  /// Runs `action`, which must throw Error of this kind with `text` in its message.
  void refuses(ErrorKind kind,
               const std::string& text,
               const std::string& what,
               const std::function<void()>& action);
  bool ok() const { return failures_.empty(); }
  std::string text() const;

 private:
  std::vector<std::string> failures_;
};

/// A model and the tensors of its weights. Matrices have deviation 0.3, everything else is
/// random around its initial value: at the usual 0.02 a wrong cap or activation would hide in the
/// tolerance.
struct Rig {
  std::map<std::string, Tensor> values;
  model::Model model;
  const model::ModelSpec& spec() const { return model.spec(); }
};

/// Values are rounded to `rounding` and held as `type`, so that rigs of different types hold equal
/// numbers.
Rig make_rig(const Json& json, at::ScalarType type, at::ScalarType rounding = at::kFloat);
/// The same numbers, held in `storage` outside torch, as weights mapped from a file are.
Rig make_stored_rig(const Json& json, at::ScalarType storage);

/// Token ids from a stream of their own.
Ids random_ids(int64_t n, uint64_t seed);
/// n positive parts of `total`.
std::vector<int64_t> random_split(int64_t total, uint64_t seed);

/// What the encoder of a decoder makes of the sources of those rows that have none in `state`
/// yet (all without a state); nothing where there is no encoder. All rows read the same source, so
/// that they can be compared.
std::optional<nn::Encoded> encode_sources(const Rig& rig,
                                          const nn::Batch& batch,
                                          const model::State* state = nullptr);
/// The spec with one layer to a stack.
Json shallow(Json json);

/// A batch of these documents. Where the model reads features, those of a document follow from its
/// ids, and are the fewest that make at least as many tokens.
nn::Batch batch_of(const Rig& rig, const Rows& rows);

/// Logits (or hidden states without a head) of whole documents, [N, C]; of rows as many tokens as
/// they have ids.
Tensor whole(const Rig& rig, const nn::Batch& batch);
Tensor whole(const Rig& rig, const Rows& rows);

/// New tokens of one row of a state.
struct Feed {
  int64_t row;
  Ids ids;
};
/// One call that continues the given rows.
Tensor feed(const Rig& rig,
            model::State& state,
            const std::vector<Feed>& feeds,
            bool pending = false);
/// One row's tokens in several calls.
Tensor feed_split(const Rig& rig,
                  model::State& state,
                  int64_t row,
                  const Ids& ids,
                  const std::vector<int64_t>& lengths);

/// Largest difference relative to the largest reference value; infinity when shapes differ or a
/// value is not finite.
double difference(const Tensor& got, const Tensor& want);
bool same_bits(const Tensor& a, const Tensor& b);
/// mean((a - b)^2) / mean(b^2)
double normalised_mean_square(const Tensor& got, const Tensor& want);

/// sum(y * r) with fixed random r: every output counts.
Tensor scalar_of(const Tensor& y);
/// Gradients of scalar_of(y) for all values of a rig, by name; undefined where none arrives.
std::map<std::string, Tensor> gradients(const Rig& rig, const std::function<Tensor()>& forward);

/// As many threads, of tessera's and of libtorch's, while it lives.
class Threads {
 public:
  explicit Threads(int n);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int ours_, theirs_;
};

/// Fresh tensors, and the work memory of kernels, hold NaN while this lives.
class UnwrittenIsNan {
 public:
  UnwrittenIsNan();
  ~UnwrittenIsNan();

 private:
  kernels::PoisonedScratch scratch_;
};

}  // namespace tessera::contract
