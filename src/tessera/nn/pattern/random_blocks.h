// Blocks drawn by a counter-based generator: a pure function of seed, layer, head and block row, so
// that every call, split and thread draws the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tessera/base/rng.h"

namespace tessera::nn {

/// `count` distinct numbers of [0, n), or all of them where there are fewer; ascending. Floyd's
/// algorithm: each subset is equally likely.
inline std::vector<int64_t> distinct_draws(const RandomKey& key, int64_t n, int64_t count) {
  count = std::clamp<int64_t>(count, 0, std::max<int64_t>(n, 0));
  std::vector<int64_t> out;
  for (int64_t top = n - count; top < n; ++top) {
    const uint64_t bits = key.bits(static_cast<uint64_t>(top - (n - count)));
    const auto pick = static_cast<int64_t>(bits * static_cast<uint64_t>(top + 1) >> 32);
    const bool taken = std::find(out.begin(), out.end(), pick) != out.end();
    out.push_back(taken ? top : pick);
  }
  std::sort(out.begin(), out.end());
  return out;
}

inline RandomKey block_row_key(int64_t seed, int64_t layer, int64_t head, int64_t row) {
  return RandomKey(static_cast<uint64_t>(seed))
      .fold("pattern.blocks")
      .fold(static_cast<uint64_t>(layer))
      .fold(static_cast<uint64_t>(head))
      .fold(static_cast<uint64_t>(row));
}

}  // namespace tessera::nn
