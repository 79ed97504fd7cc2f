// Heavy hitters: KV cache eviction by received attention weight. Next to the last tokens, every
// key-value head keeps those keys to which its queries have given the most weight so far.
//   Query p sees the keys from position e on and its head's heavy ones, e = [p / every] every -
//   last; whenever `every` more tokens are there, those that fall out of the last ones join the
//   heavy ones, and of these the `keep` with the largest sums of weights stay:
//     w_j = sum over the queries that saw j and over the query heads of its head of p_ij
//   At equal sums the earlier key stays.
// When tokens are evicted depends on their positions alone, not on how a text is split into
// calls. Keys stay rotated by their own positions. Zhang et al. 2023, arXiv:2306.14048,
// where one key goes at every token.
#pragma once

#include <algorithm>

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct HeavyHitters {
  int64_t keep = 0;
  int64_t last = 0;
  int64_t every = 64;

  static constexpr auto fields() {
    using C = HeavyHitters;
    return std::tuple{
        spec::field("keep", &C::keep, "keys that stay for their weight, of every key-value head",
                    {.min = 1, .required = true}),
        spec::field("last", &C::last, "last tokens whose keys are kept in addition", {.min = 0}),
        spec::field("every", &C::every, "tokens after which keys are evicted", {.min = 1})};
  }
  /// Keys of a head that are held at most.
  int64_t most() const { return keep + last + every; }
  /// The first of the last tokens once `length` are there; earlier ones are heavy or evicted.
  int64_t first_of_last(int64_t length) const {
    return std::max<int64_t>(0, length / every * every - last);
  }
};

/// Declarations after those of the last keys and values, which are first and second: entries
/// [heads, width] of the heavy ones, and sums of weights by place (heavy_keys.h).
std::vector<spec::StateDecl> heavy_state(const HeavyHitters& who, int64_t heads, int64_t width);

}  // namespace tessera::nn
