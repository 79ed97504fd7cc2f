// Decoding step of the time mixing of RWKV-5 and RWKV-6 (decode_step.h). One token of every row.
#pragma once

#include <map>
#include <string_view>

#include "tessera/nn/mixer/linear/recurrent_config.h"
#include "tessera/nn/parts.h"

namespace tessera::nn {

/// The inputs whose mixing with the token before follows the token in RWKV-6: the order of the
/// rows of mix_down.
inline constexpr std::string_view kRwkv6Mixes = "wkvrg";

/// What follows the token in RWKV-6, and is fixed in RWKV-5.
struct Rwkv6Parts {
  int64_t mix_rank;
  const Linear &mix_down, &decay_down, &decay_up;
  const std::map<char, Linear>& mix_up;
};

/// The weights of time mixing; g is null without a gate. Of `decay` (RWKV-5) and `follows`
/// (RWKV-6) one is there.
struct Rwkv5Parts {
  const RecurrentConfig& shape;
  double norm_eps;
  const Linear &r, &k, &v, &o, &g;
  const std::map<char, WeightPtr>& mix;
  WeightPtr bonus, norm_weight, norm_bias;
  WeightPtr decay = nullptr;
  const Rwkv6Parts* follows = nullptr;
};
/// Null if it does not support a weight. `parts` outlive it, but for `follows` itself.
std::shared_ptr<const PartStep> rwkv5_step(const Rwkv5Parts& parts,
                                           const ops::ProductSettings& products);

}  // namespace tessera::nn
