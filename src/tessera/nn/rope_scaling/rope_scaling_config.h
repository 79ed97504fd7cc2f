// What a rope scaling is: a change of the angular frequencies, and a factor on cos and sin.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct RopeFrequencies {
  std::vector<double> omega;  // r/2 values, radians per position
  double factor = 1;          // multiplies cos and sin, so scores get factor^2
};

/// omega_m = theta^(-2m/r)
inline std::vector<double> plain_frequencies(double theta, int64_t rotary_dim) {
  std::vector<double> omega(static_cast<size_t>(rotary_dim / 2));
  for (size_t m = 0; m < omega.size(); ++m)
    omega[m] = std::pow(theta, -2.0 * static_cast<double>(m) / static_cast<double>(rotary_dim));
  return omega;
}

/// What angles_until() gives where angles never change.
inline constexpr int64_t kAnglesStay = std::numeric_limits<int64_t>::max();

struct RopeScalingConfig : spec::Config {
  virtual RopeFrequencies frequencies(double theta, int64_t rotary_dim, int64_t length) const = 0;
  /// How long a sequence of `length` tokens can become before its frequencies change.
  virtual int64_t angles_until(int64_t /*length*/) const { return kAnglesStay; }
};

}  // namespace tessera::nn
