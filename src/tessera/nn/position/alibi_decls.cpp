#include "tessera/nn/position/alibi.h"

#include <bit>
#include <cmath>

#include "tessera/base/half.h"

namespace tessera::nn {

AlibiConfig::Slopes AlibiConfig::slopes(int64_t n_heads) const {
  const auto for_heads = [&](int64_t n) {
    const auto whole = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
    const auto slope = [&](int64_t h) {
      const double mu = std::exp2(-bias_max * static_cast<double>(h) / static_cast<double>(whole));
      return scaled ? bf16_to_float(float_to_bf16(static_cast<float>(mu))) : mu;
    };
    std::vector<double> out;
    if (whole == n) {
      for (int64_t h = 1; h <= n; ++h) out.push_back(slope(h));
      return out;
    }
    for (const int64_t first : {2, 1})
      for (int64_t h = first; h <= whole && static_cast<int64_t>(out.size()) < n; h += 2)
        out.push_back(slope(h));
    return out;
  };
  if (sides == AlibiSides::symmetric) return {for_heads(n_heads), for_heads(n_heads)};
  Slopes apart;
  const std::vector<double> all = for_heads(2 * n_heads);
  for (size_t h = 0; h < all.size(); h += 2) {
    apart.past.push_back(all[h]);
    apart.future.push_back(all[h + 1]);
  }
  return apart;
}

}  // namespace tessera::nn
