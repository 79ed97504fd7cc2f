// What custom autograd functions of recurrences share: tensors that may be undefined, which torch
// refuses as arguments and leaves as gradients.
#pragma once

#include <optional>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// x in float32, or nothing.
inline std::optional<Tensor> float_or_none(const Tensor& x) {
  return x.defined() ? std::optional<Tensor>(x.to(at::kFloat)) : std::nullopt;
}

/// x in float32 and dense.
inline Tensor as_float(const Tensor& x) {
  return x.to(at::kFloat).contiguous();
}

/// A gradient, dense; zeros like `like` where nothing gave one.
inline Tensor given_or_zeros(const Tensor& gradient, const Tensor& like) {
  return gradient.defined() ? gradient.contiguous() : at::zeros_like(like);
}

/// The same to write on.
inline Tensor copy_or_zeros(const Tensor& gradient, const Tensor& like) {
  return gradient.defined() ? gradient.clone(at::MemoryFormat::Contiguous) : at::zeros_like(like);
}

}  // namespace tessera::ops
