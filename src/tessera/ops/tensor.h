// The tensor type, and what all operations share. Which form of an operation computes: form.h.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tessera/base/error.h"

namespace tessera {

using at::Tensor;

namespace ops {

/// Whether only the caller's own x sees its numbers, so that what was given x by value may
/// write over them where no gradient is recorded.
inline bool sole_owner(const Tensor& x) {
  return !at::GradMode::is_enabled() && x.use_count() == 1 && x.storage().use_count() == 1;
}

/// x + y, written over y where nothing else refers to y.
inline Tensor plus(const Tensor& x, Tensor y) {
  if (sole_owner(y) && y.scalar_type() == x.scalar_type() && y.device() == x.device() &&
      y.sizes() == x.sizes())
    return y.add_(x);
  return x + y;
}

/// Products of 16-bit floats on a CPU are computed in float32: libtorch is up to 400 times slower
/// there without bf16 units, and oneDNN may not be safe.
inline bool widen_products(const Tensor& x) {
  return x.device().is_cpu() && (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf);
}

/// The type in which statistics are computed: float32, or double for double.
inline at::ScalarType wide(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace ops
}  // namespace tessera
