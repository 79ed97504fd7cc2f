// Numbers as a tensor of a float type, trainable or not, on any device.
#pragma once

#include "tessera/ops/form.h"
#include "tessera/ops/weights/kernel_storage.h"

namespace tessera::ops {

class DenseStorage final : public KernelStorage {
 public:
  explicit DenseStorage(Tensor tensor)
      : KernelStorage(dtype_of(tensor.scalar_type()), tensor.sizes().vec()),
        tensor_(std::move(tensor)) {}
  at::Device device() const override { return tensor_.device(); }
  const void* data() const override {
    return on_host(device()) ? tensor_.const_data_ptr() : nullptr;
  }
  bool lies_in_rows() const override { return on_host(device()) && tensor_.is_contiguous(); }
  const Tensor& dense() const override { return tensor_; }
  Tensor tensor() const override { return tensor_; }
  StoragePtr slice(int64_t index) const override {
    return std::make_shared<const DenseStorage>(tensor_.select(0, index));
  }
  StoragePtr to(at::Device device) const override;
  Tensor rows(const Tensor& ids_N) const override;

 protected:
  /// Gradients reach the tensor, which is read again at each call: optimizers write it.
  Tensor matrix(at::Device device, at::ScalarType type) const override {
    return tensor_.to(device, type);
  }

 private:
  Tensor tensor_;
};

}  // namespace tessera::ops
