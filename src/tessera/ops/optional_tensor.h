// Tensors that may be undefined, as arguments of torch's custom functions, which refuse those.
#pragma once

#include <optional>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// x in float32, or nothing.
inline std::optional<Tensor> float_or_none(const Tensor& x) {
  return x.defined() ? std::optional<Tensor>(x.to(at::kFloat)) : std::nullopt;
}

}  // namespace tessera::ops
