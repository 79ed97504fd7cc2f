// What a rope scaling is: a change of the angular frequencies, and a factor on cos and sin.
#pragma once

#include <cmath>
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

struct RopeScalingConfig : spec::Config {
  virtual RopeFrequencies frequencies(double theta, int64_t rotary_dim, int64_t length) const = 0;
  virtual bool depends_on_length() const { return false; }
  virtual int64_t switch_length() const { return 0; }
};

}  // namespace tessera::nn
