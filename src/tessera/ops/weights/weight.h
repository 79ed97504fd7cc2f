// A parameter as a value: a name, the numbers in a storage (storage.h), and adapters on them.
// Storage and computation are separate: a Q4_1 matrix mapped from a file is multiplied as it lies
// there. How products with a parameter are computed is a matter of the call (ProductSettings).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/format/tensor_view.h"
#include "tessera/kernels/weights/digits.h"
#include "tessera/ops/tensor.h"
#include "tessera/ops/weights/product_settings.h"
#include "tessera/ops/weights/storage.h"

namespace tessera::ops {

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
  Weight(std::string name, StoragePtr storage)
      : name_(std::move(name)), storage_(std::move(storage)) {}
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
  /// The same numbers, of which linear() and grouped_linear() round both operands. Throws
  /// Error(usage) where another operation reads them. See with_rounding() (quantized_operands.h).
  Weight rounded(OperandRounding rounding) const;
  const OperandRounding& rounding() const { return rounding_; }
  /// Matrix `index` of matrices [E, O, I], one per expert: [O, I], where it lies. Gradients reach
  /// the whole of a trainable one.
  Weight slice(int64_t index) const;

  explicit operator bool() const { return storage_ != nullptr || adapted_ != nullptr; }
  const std::string& name() const { return name_; }
  DType dtype() const { return base().dtype(); }
  const std::vector<int64_t>& shape() const { return base().shape(); }
  int64_t size(int axis) const { return base().size(axis); }
  int64_t elements() const { return base().elements(); }
  int64_t bytes() const { return base().bytes(); }
  at::Device device() const { return base().device(); }

  /// The numbers as a float tensor. Dense weights return their own tensor, which gradients reach;
  /// stored f32 is a view, other storage types a fresh float32 copy (small weights, conversions).
  /// The product of an adapter is computed as `settings` say. Throws Error(usage) where an adapted
  /// one is to drop inputs, or a weight to round what it reads, of which a matrix knows none.
  Tensor tensor(const ProductSettings& settings = {}) const;

  /// Of an adapted weight they are those of no storage: not trainable, undefined, null.
  bool trainable() const { return storage_ != nullptr && storage_->trainable(); }
  /// The tensor of a dense weight, for optimizers and gradients; undefined for others.
  const Tensor& dense_tensor() const;
  /// Storage::columns()
  const int32_t* columns() const { return storage_ == nullptr ? nullptr : storage_->columns(); }
  /// Storage::data()
  const void* data() const { return storage_ == nullptr ? nullptr : storage_->data(); }
  /// Whether data() lies in this machine's memory, row after row, as kernels read it, and they
  /// round what is to be rounded.
  bool readable_by_kernels() const;

  /// The numbers; null in an adapted weight.
  const StoragePtr& storage() const { return storage_; }
  /// The parts of an adapted weight; null in others.
  const Adapted* parts() const { return adapted_.get(); }

 private:
  /// The storage of the numbers that adapters change, or of the weight itself.
  const Storage& base() const;
  Weight quantized(DType dtype) const;

  std::string name_;
  StoragePtr storage_;
  OperandRounding rounding_;
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
  /// The matrix that the parts make. Throws Error(usage) where inputs are to be dropped.
  Tensor matrix(const ProductSettings& settings) const;
  /// magnitude / |row of W + scale B A|, [O] or [E, O].
  Tensor row_factors() const;
  /// All of them, W first.
  std::vector<WeightPtr> all() const;
  /// The same of `change(part)` for every part but the prefix; null stays null.
  template <class Change>
  Adapted changed(Change change) const {
    Adapted out = *this;
    for (WeightPtr* part : {&out.w, &out.a, &out.b, &out.magnitude, &out.out, &out.in})
      if (*part != nullptr) *part = change(*part);
    return out;
  }

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
