// Decoding steps of RWKV (decode_step.h): time mixing of version 7, and channel mixing. One token
// of every row.
#pragma once

#include <map>

#include "tessera/nn/mixer/linear/rwkv7.h"
#include "tessera/nn/mixer/linear/rwkv_channel_mix.h"
#include "tessera/nn/parts.h"

namespace tessera::nn {

/// The name of the first time mixer's values (Context::values), [N, H * V].
inline constexpr const char* kFirstRwkvValue = "rwkv7.first_value";
/// Added to the squared length of a removed key: below any that float32 resolves; keeps a key of
/// zeros at zero.
inline constexpr double kRwkvKeyEps = 1e-24;

/// The weights of time mixing; those of value_mix are null where it mixes no values.
struct Rwkv7Parts {
  const Rwkv7Config& config;
  const Linear &r, &k, &v, &o, &decay_down, &decay_up, &rate_down, &rate_up, &gate_down, &gate_up,
      &value_mix_down, &value_mix_up;
  const std::map<char, WeightPtr>& mix;
  WeightPtr key_scale, key_rate, bonus, norm_weight, norm_bias;
};
/// Null if it does not support an option or a weight. `parts` outlive it.
std::shared_ptr<const PartStep> rwkv7_step(const Rwkv7Parts& parts,
                                           const ops::ProductSettings& products);

/// The weights of channel mixing; r is null without a gate.
struct RwkvChannelMixParts {
  const RwkvChannelMixConfig& config;
  const Linear &k, &v, &r;
  const std::map<char, WeightPtr>& mix;
};
std::shared_ptr<const PartStep> rwkv_channel_mix_step(const RwkvChannelMixParts& parts,
                                                      const ops::ProductSettings& products);

}  // namespace tessera::nn
