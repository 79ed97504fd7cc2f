// What every residual does to a branch's output.
#pragma once

#include "tessera/nn/parts.h"
#include "tessera/nn/residual/residual_config.h"
#include "tessera/ops/random.h"

namespace tessera::nn {

/// scale * dropout(f)
inline Tensor damped(const ResidualConfig& config,
                     const Tensor& f_ND,
                     const Branch& branch,
                     const Context& context) {
  Tensor f = f_ND;
  if (context.training && config.dropout > 0)
    f = ops::dropout(f, config.dropout, context.key.fold(branch.name + ".residual"));
  return config.scale == 1 ? f : f * config.scale;
}

}  // namespace tessera::nn
