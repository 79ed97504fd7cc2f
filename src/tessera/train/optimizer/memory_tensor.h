// Tensors over memory of a device.
#pragma once

#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::train {

/// A tensor over memory of `device`, which must outlive it.
inline Tensor memory_tensor(const void* data,
                            const std::vector<int64_t>& shape,
                            at::Device device,
                            at::ScalarType type = at::kFloat) {
  return at::for_blob(const_cast<void*>(data), shape)
      .options(at::TensorOptions(device).dtype(type))
      .target_device(device)
      .make_tensor();
}

}  // namespace tessera::train
