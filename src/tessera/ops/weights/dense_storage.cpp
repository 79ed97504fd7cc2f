#include "tessera/ops/weights/dense_storage.h"

namespace tessera::ops {

StoragePtr DenseStorage::to(at::Device device) const {
  if (device == this->device()) return shared_from_this();
  return std::make_shared<const DenseStorage>(
      tensor_.detach().to(device).requires_grad_(trainable()));
}

Tensor DenseStorage::rows(const Tensor& ids_N) const {
  return at::embedding(tensor_, ids_N);
}

}  // namespace tessera::ops
