// ln(1 + e^x) of single numbers: of step sizes, of which there are few.
#pragma once

#include <algorithm>
#include <cmath>

namespace tessera::ops {

/// Computed in double.
inline float softplus_of(float x) {
  const double v = x;
  return static_cast<float>(std::max(v, 0.0) + std::log1p(std::exp(-std::abs(v))));
}

}  // namespace tessera::ops
