// The numbers of a parameter, and the operations on them. Where they are and how they are encoded
// is a matter of the storage: dense tensors (dense_storage.h), encoded bytes in this machine's
// memory (block_storage.h) or on another device (device_blocks.h).
//
// Type, shape, device and order of columns never change. The numbers change where an optimizer
// writes a trainable tensor. Each operation has a plain form here, of torch's operations on the
// decoded numbers, for any device and type; storages override it with faster ones.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/ops/tensor.h"
#include "tessera/ops/weights/product_settings.h"

namespace tessera::ops {

/// torch's type of a plain storage type; throws Error(internal) for block types.
at::ScalarType scalar_type_of(DType dtype);
DType dtype_of(at::ScalarType type);

class SharedInput;
class Storage;
using StoragePtr = std::shared_ptr<const Storage>;

class Storage : public std::enable_shared_from_this<Storage> {
 public:
  Storage(DType dtype, std::vector<int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {}
  virtual ~Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size(int axis) const { return shape_[static_cast<size_t>(axis)]; }
  int64_t elements() const;
  int64_t bytes() const { return storage_bytes(dtype_, elements()); }
  virtual at::Device device() const = 0;

  /// The order in which the columns of each matrix lie (format::ColumnOrder), in this machine's
  /// memory; null where it is theirs.
  virtual const int32_t* columns() const { return nullptr; }
  /// First byte of the numbers in this machine's memory; null where they are on another device.
  virtual const void* data() const { return nullptr; }
  /// Whether the numbers lie at data(), row after row, as kernels of the CPU read them.
  virtual bool lies_in_rows() const { return false; }
  /// The tensor of a dense storage, which gradients reach; undefined in others.
  virtual const Tensor& dense() const;
  bool trainable() const { return dense().defined() && dense().requires_grad(); }

  // --- operations ---

  /// The numbers as a float tensor on device(), columns in their order: the dense tensor itself,
  /// else float32.
  virtual Tensor tensor() const = 0;
  /// Matrix `index` of [E, O, I], or a row of [O, I], where it lies.
  virtual StoragePtr slice(int64_t index) const = 0;
  /// The same numbers on `device`; itself if it is there. A copy is trainable where this is, with a
  /// gradient of its own.
  virtual StoragePtr to(at::Device device) const = 0;

  /// x [.., I] W_OI^T (+ bias_O) -> [.., O], with gradients. `shared`: x, if several products read
  /// it; may be null.
  virtual Tensor product(const Tensor& x,
                         const SharedInput* shared,
                         const Tensor& bias_O,
                         const ProductSettings& settings) const;
  /// Rows [offsets[e], offsets[e + 1]) of x_NI times matrix e of [E, O, I]^T (+ bias_EO[e])
  /// -> [N, O], with gradients.
  virtual Tensor grouped(const Tensor& x_NI,
                         const SharedInput* shared,
                         const std::vector<int64_t>& offsets,
                         const Tensor& bias_EO,
                         const ProductSettings& settings) const;
  /// y [.., O] W_OI -> [.., I].
  virtual Tensor transposed(const Tensor& y) const;
  /// x_NHI times the matrix of each head, H of them in [H * O, I] (+ bias [H * O]) -> [N, H, O],
  /// with gradients.
  virtual Tensor heads(const Tensor& x_NHI,
                       const Tensor& bias,
                       const ProductSettings& settings) const;
  /// Rows ids_N of [V, D] -> [N, D], on the device of the ids or of the storage; ids in range.
  virtual Tensor rows(const Tensor& ids_N) const;
  /// Sums of squares of the rows of [O, I]: [O] in double, without gradients.
  virtual Tensor squared_rows() const;

  /// Whether kernels of the CPU compute products of x with the numbers as they lie.
  virtual bool by_kernel(const Tensor& /*x*/) const { return false; }

 protected:
  /// The numbers as `type` on `device`, for the plain forms: decoded once for each device.
  virtual Tensor matrix(at::Device device, at::ScalarType type) const;
  /// slice(index), made once where gradients do not pass it.
  StoragePtr expert(int64_t index) const;
  /// product() through numbers that are not trained: what is recorded is this storage, never a
  /// float copy of the numbers.
  Tensor constant_product(const Tensor& x, const Tensor& bias_O) const;
  /// The same without gradients, in float32 where x is.
  virtual Tensor unrecorded_product(const Tensor& x, const Tensor& bias_O) const;

 private:
  Tensor decoded(at::Device device) const;

  DType dtype_;
  std::vector<int64_t> shape_;
  mutable std::mutex mutex_;
  mutable std::vector<Tensor> decoded_;      // one for each device
  mutable std::vector<StoragePtr> experts_;  // null: not yet made
};

/// The type in which products of x are computed.
inline at::ScalarType product_type(const Tensor& x) {
  return widen_products(x) ? at::kFloat : x.scalar_type();
}

/// Calls body(expert, its rows' begin, their number) for experts that have rows.
template <class Body>
void for_experts(const std::vector<int64_t>& offsets, Body body) {
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    if (offsets[e + 1] > offsets[e])
      body(static_cast<int64_t>(e), offsets[e], offsets[e + 1] - offsets[e]);
}

}  // namespace tessera::ops
