// What the RWKV mixers declare alike.
#pragma once

#include <string>
#include <vector>

#include "tessera/nn/mixer/linear/recurrent_config.h"

namespace tessera::nn {

/// r, k, v and the output, the heads' norm.
void time_mix_params(spec::ParamList& list, const spec::Scope& scope, const RecurrentConfig& c);

/// How much of the token before, or of the present one, each channel takes: the published ramps
/// over channels cover (0, 1).
void mix_params(spec::ParamList& list, const spec::Scope& scope, std::string_view names);

/// x -> up(down(x)) + bias: inner weights start at zero, as published.
void low_rank_params(
    spec::ParamList& list, const std::string& name, int64_t out, int64_t rank, int64_t in);

std::vector<spec::StateDecl> time_mix_state(const RecurrentConfig& c, const spec::Scope& scope);

}  // namespace tessera::nn
