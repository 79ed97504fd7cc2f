// What the short causal convolution in front of many mixers declares.
#pragma once

#include <cmath>

#include "tessera/spec/mechanism.h"

namespace tessera::nn {

/// Framework default of a depthwise convolution of `taps`: fan-in is the number of taps.
inline spec::Init conv_init(int64_t taps) {
  const double bound = 1 / std::sqrt(static_cast<double>(taps));
  return spec::Init::uniform(-bound, bound);
}

/// `name`.weight [channels, taps], the last tap meeting the present, and `name`.bias [channels].
inline void declare_conv(spec::ParamList& list,
                         const std::string& name,
                         std::vector<int64_t> channels_taps,
                         const spec::Init& weight,
                         const spec::Init* bias) {
  const int64_t channels = channels_taps[0];
  list.add({name + ".weight",
            std::move(channels_taps),
            weight,
            spec::ParamKind::structural,
            {spec::Role::out, spec::Role::none}});
  list.add_if(bias != nullptr, {name + ".bias",
                                {channels},
                                bias != nullptr ? *bias : spec::Init::constant(0),
                                spec::ParamKind::bias});
}

/// The inputs that the next token's window still sees, oldest first.
inline spec::StateDecl conv_state(int64_t channels, int64_t taps) {
  return {"conv", spec::StateDecl::Kind::fixed, {taps - 1, channels}};
}

}  // namespace tessera::nn
