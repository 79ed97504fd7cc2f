// What every residual does to a branch's output.
#pragma once

#include "tessera/nn/dropout.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/residual/residual_config.h"

namespace tessera::nn {

/// scale * dropout(f)
inline Tensor damped(const ResidualConfig& config,
                     const Tensor& f_ND,
                     const Branch& branch,
                     const Context& context) {
  const Tensor f = dropout(f_ND, config.dropout, branch.name + ".residual", context);
  return config.scale == 1 ? f : f * config.scale;
}

}  // namespace tessera::nn
