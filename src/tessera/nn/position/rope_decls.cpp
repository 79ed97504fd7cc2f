#include "tessera/nn/position/rope.h"

namespace tessera::nn {

RopeFrequencies RopeConfig::frequencies(int64_t length) const {
  if (!scaling) return {plain_frequencies(theta, rotary_dim), 1};
  return scaling.as<RopeScalingConfig>().frequencies(theta, rotary_dim, length);
}

}  // namespace tessera::nn
