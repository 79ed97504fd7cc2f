// What residuals do to a branch's output, and to its sum with the stream.
#pragma once

#include "tessera/nn/dropout.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/residual/residual_config.h"
#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::nn {

/// scale * gain * dropout(f), f [N, D]
inline Tensor damped(const ResidualConfig& config,
                     Tensor f,
                     const Branch& branch,
                     const Context& context) {
  f = dropout(f, config.dropout, branch.name + ".residual", context);
  if (branch.gain) f = f * ops::spread(branch.gain->tensor().to(f.device(), f.scalar_type()), f);
  return config.scale == 1 ? f : f * config.scale;
}

/// The sum x [N, D] of stream and branch, times its learned factor where it has one.
inline Tensor scaled_sum(const Tensor& x, const Branch& branch) {
  if (!branch.sum_gain) return x;
  return x * ops::spread(branch.sum_gain->tensor().to(x.device(), x.scalar_type()), x);
}

}  // namespace tessera::nn
