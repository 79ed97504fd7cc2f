// Numbers in blocks on a device other than the CPU: their bytes stay as they are stored. Products
// decode a tile of rows at a time; kernels of CUDA multiply few rows of x with the bytes
// (packed_product.h).
#pragma once

#include "tessera/ops/weights/block_storage.h"

namespace tessera::ops {

class DeviceBlocks final : public Storage {
 public:
  /// `dtype`: any block type. `bytes`: uint8 on the device, as many as the shape has. `columns`: as
  /// those of BlockStorage.
  DeviceBlocks(DType dtype,
               std::vector<int64_t> shape,
               const Tensor& bytes,
               ColumnsPtr columns = nullptr);

  at::Device device() const override { return rows_RB_.device(); }
  const int32_t* columns() const override { return columns_.get(); }
  Tensor tensor() const override;
  StoragePtr slice(int64_t index) const override;
  StoragePtr to(at::Device device) const override;
  Tensor product(const Tensor& x,
                 const SharedInput* shared,
                 const Tensor& bias_O,
                 const ProductSettings& settings) const override;
  Tensor transposed(const Tensor& y) const override;
  Tensor rows(const Tensor& ids_N) const override;

  /// Rows [begin, begin + count) of all matrices, one after the other, as `type` on the device: the
  /// one place where products, rows and tensor() decode.
  Tensor decode(int64_t begin, int64_t count, at::ScalarType type = at::kFloat) const;

 protected:
  /// Decoded at every call on the storage's own device, so that the numbers stay encoded there.
  Tensor matrix(at::Device device, at::ScalarType type) const override;
  Tensor unrecorded_product(const Tensor& x, const Tensor& bias_O) const override;

 private:
  DeviceBlocks(DType dtype, std::vector<int64_t> shape, Tensor rows, ColumnsPtr columns, Tensor at);
  int64_t rows_of_matrix() const;
  /// rows_RI, as they lie, of matrix m.
  Tensor in_their_order(const Tensor& rows_RI, int64_t m) const;
  /// Calls body(first row, rows_RI) for tiles of the matrix [O, I] as `type`, columns in their
  /// order.
  template <class Body>
  void for_tiles(at::ScalarType type, Body body) const;

  Tensor rows_RB_;  // bytes of each row
  ColumnsPtr columns_;
  Tensor place_MI_;  // int64 on the device: where each column of a matrix lies; undefined: there
};

}  // namespace tessera::ops
