// What the delta rule layers (delta_net, gated_delta_net, kda) declare alike.
#pragma once

#include <string>
#include <vector>

#include "tessera/nn/mixer/linear/recurrent_config.h"

namespace tessera::nn {

/// Projections of q, k, v and beta, the convolution, the norm and the output.
void delta_params(spec::ParamList& list,
                  const spec::Scope& scope,
                  const RecurrentConfig& config,
                  int64_t n_key_heads,
                  int64_t d_conv);

/// ln decay = -exp(a_log) softplus(... + dt_bias), as in Mamba.
void step_params(spec::ParamList& list, int64_t n_heads, int64_t steps);

std::vector<spec::StateDecl> delta_state(const RecurrentConfig& config,
                                         int64_t n_key_heads,
                                         int64_t d_conv);

double delta_flops(const RecurrentConfig& config, int64_t n_key_heads, int64_t d_conv);

}  // namespace tessera::nn
