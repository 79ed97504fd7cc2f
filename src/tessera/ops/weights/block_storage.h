// Numbers encoded in a storage type, in this machine's memory: mapped from a file, or made by
// quantization. Floats of files are blocks of one number.
#pragma once

#include "tessera/format/tensor_view.h"
#include "tessera/ops/weights/kernel_storage.h"

namespace tessera::ops {

/// The order of columns (format::ColumnOrder), or of some of them.
using ColumnsPtr = std::shared_ptr<const int32_t>;

class BlockStorage final : public KernelStorage {
 public:
  /// `owner` keeps the bytes at `data` alive; null when the caller does. Never trainable.
  BlockStorage(DType dtype,
               std::vector<int64_t> shape,
               const void* data,
               std::shared_ptr<const void> owner,
               ColumnsPtr columns = nullptr);
  /// Throws Error(internal) for an order of columns that is not of block types or does not fit.
  static StoragePtr of(const format::TensorView& view);

  at::Device device() const override { return at::kCPU; }
  const int32_t* columns() const override { return columns_.get(); }
  const void* data() const override { return data_; }
  bool lies_in_rows() const override { return true; }
  /// A view of float32, else a copy that is decoded at every call.
  Tensor tensor() const override;
  StoragePtr slice(int64_t index) const override;
  /// On another device blocks of every type stay encoded (device_blocks.h), and plain floats are a
  /// tensor of their type: a copy takes bytes() there.
  StoragePtr to(at::Device device) const override;
  /// Only these rows are decoded.
  Tensor rows(const Tensor& ids_N) const override;

 private:
  const void* data_;
  std::shared_ptr<const void> owner_;
  ColumnsPtr columns_;
  Tensor view_;  // of aligned float32
};

}  // namespace tessera::ops
