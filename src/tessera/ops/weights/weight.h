// A parameter as a value: numbers in a storage type, and the operations on them. Storage and
// computation are separate: a Q4_1 matrix mapped from a file is multiplied as it lies there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/format/tensor_view.h"
#include "tessera/kernels/weights/digits.h"
#include "tessera/ops/tensor.h"
#include "tessera/ops/weights/product_settings.h"

namespace tessera::ops {

/// torch's type of a plain storage type; throws Error(internal) for block types.
at::ScalarType scalar_type_of(DType dtype);
DType dtype_of(at::ScalarType type);

class Weight;
using WeightPtr = std::shared_ptr<const Weight>;

/// How products with a weight round their operands, in training with straight-through gradients
/// (BitLinear of BitNet b1.58: Ma et al. 2024, arXiv:2402.17764, sec. 2).
struct OperandRounding {
  bool ternary = false;  // the matrix: its mean magnitude times -1, 0 or 1
  bool int8 = false;     // what it reads: 8 bits, scaled by the largest magnitude of each row
  explicit operator bool() const { return ternary || int8; }
};

class Weight {
 public:
  Weight() = default;
  /// A tensor of any float type, trainable when it requires a gradient.
  static Weight dense(std::string name, Tensor tensor);
  /// Numbers that lie elsewhere (a mapped file); `owner` keeps them alive. Read-only, never
  /// trainable.
  static Weight stored(std::string name,
                       DType dtype,
                       std::vector<int64_t> shape,
                       const void* data,
                       std::shared_ptr<const void> owner);
  /// The same of a tensor of a checkpoint, whose columns may lie in another order: what this class
  /// and products say of columns is of those that the tensor represents.
  static Weight stored(const format::TensorView& view);

  /// W + scale B A: a matrix W [O, I] of any storage plus a low-rank product, A [r, I]
  /// and B [O, r]; or E of each, one per expert: [E, O, I], [E, r, I], [E, O, r]. All three stay as
  /// they are, and are trained where they are trainable. `dropout` is the probability with which
  /// training drops a number that A reads (ProductSettings::drop).
  static Weight adapted(
      WeightPtr w, WeightPtr a, WeightPtr b, double scale = 1, double dropout = 0);
  struct Adapted;
  /// The same with all its adapters.
  static Weight adapted(Adapted parts);

  /// The numbers rounded to the nearest of another storage type, in memory of its own; never
  /// trainable. Throws Error(usage) where nothing writes that type (f32, f16, bf16 and block types
  /// are written), or rows are no whole blocks of it.
  Weight converted(DType dtype) const;
  /// The same numbers, multiplied in this arithmetic where they lie in blocks and no gradient is
  /// recorded; else, as at first, exactly.
  Weight multiplied_in(kernels::Arithmetic arithmetic) const;
  /// That, or int8_row where rows that it reads are rounded (rounded()).
  kernels::Arithmetic arithmetic() const {
    return rounding_.int8 ? kernels::Arithmetic::int8_row : arithmetic_;
  }
  /// The same numbers, of which linear() and grouped_linear() round both operands. Throws
  /// Error(usage) where another operation reads them. See with_rounding() (quantized_operands.h).
  Weight rounded(OperandRounding rounding) const;
  const OperandRounding& rounding() const { return rounding_; }
  /// The same numbers for a part that reads whole texts and continues no state. Where they are
  /// float32 on a CPU and no gradient is recorded, products of linear() and grouped_linear() add up
  /// as kernels/weights/gemm.h does: faster for many rows, a row's bits follow from it alone here
  /// too, but are not those of weights as they are at first.
  Weight of_whole_texts() const;
  bool is_of_whole_texts() const { return of_whole_texts_; }
  /// Matrix `index` of matrices [E, O, I], one per expert: [O, I], where it lies. Gradients reach
  /// the whole of a trainable one.
  Weight slice(int64_t index) const;

  explicit operator bool() const { return !shape_.empty(); }
  const std::string& name() const { return name_; }
  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size(int axis) const { return shape_[static_cast<size_t>(axis)]; }
  int64_t elements() const;
  int64_t bytes() const { return storage_bytes(dtype_, elements()); }

  /// Where the numbers are.
  at::Device device() const;
  bool trainable() const { return tensor_.defined() && tensor_.requires_grad(); }

  /// The numbers as a float tensor. Dense weights return their own tensor, which gradients reach;
  /// stored f32 is a view, other storage types a fresh float32 copy (small weights, conversions).
  /// The product of an adapter is computed as `settings` say. Throws Error(usage) where an adapted
  /// one is to drop inputs, or a weight to round what it reads, of which a matrix knows none.
  Tensor tensor(const ProductSettings& settings = {}) const;
  /// The tensor of a dense weight, for optimizers and gradients; undefined for a stored one.
  const Tensor& dense_tensor() const { return tensor_; }
  /// The order in which the columns of each matrix lie (format::ColumnOrder); null where it is
  /// theirs.
  const int32_t* columns() const { return columns_.get(); }
  /// First byte of the numbers: the mapping, or the dense tensor's memory.
  const void* data() const;
  /// Whether data() lies in this machine's memory, row after row, as kernels read it, and they
  /// round what is to be rounded.
  bool readable_by_kernels() const;
  /// The parts of an adapted weight; null in others.
  const Adapted* parts() const { return adapted_.get(); }

 private:
  Weight quantized(DType dtype) const;

  std::string name_;
  DType dtype_ = DType::f32;
  kernels::Arithmetic arithmetic_ = kernels::Arithmetic::float32;
  OperandRounding rounding_;
  bool of_whole_texts_ = false;
  std::vector<int64_t> shape_;
  Tensor tensor_;
  const void* data_ = nullptr;
  Tensor view_;  // of stored f32
  std::shared_ptr<const int32_t> columns_;
  std::shared_ptr<const void> owner_;
  std::shared_ptr<const Adapted> adapted_;
};

/// diag(out) (W + scale B A) diag(in), where W [O, I] or, of E experts, [E, O, I] stays as it is;
/// what is null is not there.
struct Weight::Adapted {
  WeightPtr w;
  WeightPtr a = nullptr, b = nullptr;  // a product of low rank
  double scale = 1;                    // on it
  double dropout = 0;                  // of what A reads
  /// [O], with an adapter: the rows of W + scale B A have these lengths. That which they would
  /// have is a constant to gradients (DoRA: Liu et al. 2024, arXiv:2402.09353, sec. 4.3).
  WeightPtr magnitude = nullptr;
  /// [O] on what it gives, of a vector W [O] too; [I] on what it reads ((IA)^3: Liu et al. 2022,
  /// arXiv:2205.05638). A bias added to the product is not in it.
  WeightPtr out = nullptr, in = nullptr;
  /// [M, ..]: see prefixed(). Products know nothing of it.
  WeightPtr prefix = nullptr;

  /// What A reads of x.
  Tensor input(const Tensor& x, const ProductSettings& settings) const;
  /// magnitude / |row of W + scale B A|, [O] or [E, O].
  Tensor row_factors() const;
  /// All of them, W first.
  std::vector<WeightPtr> all() const;

  /// Lengths that are computed once.
  struct Kept;
  std::shared_ptr<Kept> kept = nullptr;
};

/// y_NO = x_NI w_OI^T (+ bias_O). Gradients reach x, and w and bias where they are trainable. The
/// gradient through a frozen weight is computed from the stored numbers, a tile at a time: what is
/// recorded is a handle to them, never a float copy of them. A SharedInput (product_input.h) may be
/// given in place of x.
Tensor linear(const Tensor& x,
              const Weight& w,
              const Weight* bias = nullptr,
              const ProductSettings& settings = {});

/// x_NI = y_NO w_OI: the product with the transposed weight, float32 on a CPU from the stored
/// numbers.
Tensor transposed_product(const Tensor& y, const Weight& w);

/// Linear maps of rows sorted by expert: rows [offsets[e], offsets[e + 1]) of x_NI times
/// w_EOI[e]^T (+ bias_EO[e]) -> [N, O]. `offsets` has E + 1 values that rise from 0 to N. An output
/// has the bits that linear() with the expert's slice gives its row. Gradients as there; those of a
/// trainable w are sums over each expert's rows in their order.
Tensor grouped_linear(const Tensor& x_NI,
                      const Weight& w_EOI,
                      const std::vector<int64_t>& offsets,
                      const Weight* bias_EO = nullptr,
                      const ProductSettings& settings = {});

/// Rows ids_N of w_VD: [N, D]; `settings` are of an adapter's product. Throws Error(input) when an
/// id is out of range.
Tensor rows(const Weight& w, const Tensor& ids_N, const ProductSettings& settings = {});

/// y [N, ..], which w gave for tokens at positions_N of their documents, with the rows of the first
/// M taken from w's prefix [M, ..] where it has one.
Tensor prefixed(const Tensor& y, const Weight& w, const Tensor& positions_N);

}  // namespace tessera::ops
