// What the factorised patterns of the Sparse Transformer share: two sets of keys, and how layers
// and heads share them out. Child et al. 2019, arXiv:1904.10509.
#pragma once

#include "tessera/nn/pattern/pattern_config.h"

namespace tessera::nn {

enum class Factors {
  alternate,  // layers take the first set and the second in turn
  merged,     // every head sees the union
  multihead,  // half of the heads take the first set, half the second
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::Factors> {
  using F = nn::Factors;
  static constexpr std::array names{std::pair{F::alternate, "alternate"},
                                    std::pair{F::merged, "merged"},
                                    std::pair{F::multihead, "multihead"}};
};

namespace tessera::nn {

/// Which of the two sets a head of a layer takes.
struct FactorChoice {
  bool first = true, second = true;
};
inline FactorChoice factors_of(Factors combine, const PatternSite& site, int64_t head) {
  if (combine == Factors::merged) return {};
  const bool second =
      combine == Factors::alternate ? site.layer % 2 == 1 : head >= site.n_heads / 2;
  return {!second, second};
}

inline void check_factor_heads(Factors combine, const spec::Scope& scope, int64_t n_heads) {
  if (combine == Factors::multihead && n_heads % 2 != 0)
    fail(ErrorKind::spec, scope.path,
         "combine \"multihead\" needs an even number of heads; n_heads = {}", n_heads);
}

/// `near` and the keys whose remainder by `period` lies in [low, high), up to `end`, ascending; low
/// may be negative, near empty.
inline void add_periodic(std::vector<KeyRange>& ranges,
                         int64_t period,
                         int64_t low,
                         int64_t high,
                         int64_t end,
                         KeyRange near = {}) {
  if (high - low >= period) return ranges.push_back({0, end});
  bool pending = near.begin < near.end;
  for (int64_t at = low - period; at < end; at += period) {
    if (pending && at >= near.begin) {
      ranges.push_back(near);
      pending = false;
    }
    const KeyRange piece{at, at + high - low};
    if (piece.begin < near.begin || piece.end > near.end) ranges.push_back(piece);
  }
  if (pending) ranges.push_back(near);
}

}  // namespace tessera::nn
