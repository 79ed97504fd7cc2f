// Storages whose numbers kernels of the CPU read as they lie, row after row in this machine's
// memory: batch-invariant products in float32 where no gradient is recorded, and products with a
// backward pass through numbers that stay encoded.
#pragma once

#include <functional>
#include <vector>

#include "tessera/ops/weights/storage.h"

namespace tessera::ops {

class KernelStorage : public Storage {
 public:
  using Storage::Storage;
  bool by_kernel(const Tensor& x) const override;
  Tensor product(const Tensor& x,
                 const SharedInput* shared,
                 const Tensor& bias_O,
                 const ProductSettings& settings) const override;
  Tensor grouped(const Tensor& x_NI,
                 const SharedInput* shared,
                 const std::vector<int64_t>& offsets,
                 const Tensor& bias_EO,
                 const ProductSettings& settings) const override;
  Tensor transposed(const Tensor& y) const override;
  Tensor heads(const Tensor& x_NHI,
               const Tensor& bias,
               const ProductSettings& settings) const override;
  Tensor squared_rows() const override;

 protected:
  Tensor unrecorded_product(const Tensor& x, const Tensor& bias_O) const override;

 private:
  struct GroupedProduct;

  /// Whether recording a product of tensors would keep a float copy of the numbers.
  bool is_encoded() const { return !trainable() && dtype() != DType::f32 && dtype() != DType::f64; }
  const void* row(int64_t index) const;
  Tensor by_rows(const Tensor& x,
                 const SharedInput* shared,
                 const Tensor& bias_O,
                 const ProductSettings& settings) const;
  Tensor by_tiles(const Tensor& x, const Tensor& bias_O) const;
  Tensor grouped_by_rows(const Tensor& x_NI,
                         const SharedInput* shared,
                         const std::vector<int64_t>& offsets,
                         const Tensor& bias_EO,
                         const ProductSettings& settings) const;
  /// Calls body(first row, rows_RI) for tiles of the matrix [O, I], widened to float32, columns in
  /// the order in which they lie.
  void for_row_tiles(const std::function<void(int64_t, const Tensor&)>& body) const;
};

}  // namespace tessera::ops
