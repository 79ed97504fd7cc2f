// Window with random blocks: the last `block` keys, and `blocks` further blocks of the same size
// that the query's block draws once and for all, other ones in every layer and head. Causal: drawn
// among the earlier blocks; else among all others.
// After Child et al. 2019, arXiv:1904.10509 (local set) and Zaheer et al. 2020, arXiv:2007.14062
// (random set).
#pragma once

#include <cstdlib>

#include "tessera/nn/pattern/pattern_config.h"
#include "tessera/nn/pattern/random_blocks.h"

namespace tessera::nn {

struct RandomPatternConfig final : PatternBase<RandomPatternConfig> {
  int64_t block = 0;
  int64_t blocks = 3;
  int64_t seed = 0;

  static constexpr auto fields() {
    using C = RandomPatternConfig;
    return std::tuple{
        spec::field("block", &C::block, "tokens in a block, and in the window",
                    {.min = 1, .required = true}),
        spec::field("blocks", &C::blocks, "random blocks per block of queries", {.min = 0}),
        spec::field("seed", &C::seed, "of the draw", {.min = 0})};
  }
  static spec::Json example(const spec::Scope&, int64_t) { return {{"block", 64}}; }
  static spec::Info info() {
    return {.summary = "A window and a few random blocks, fixed by a seed.",
            .paper = "Child et al., arXiv:1904.10509; Zaheer et al.: Big Bird, arXiv:2007.14062",
            .year = 2019,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override {
    if (seed != 0 && blocks == 0)
      fail(ErrorKind::spec, scope.path,
           "seed = {} with blocks = 0: no block is drawn; set blocks, or leave it out", seed);
  }
  /// The blocks that a block of queries draws, ascending.
  std::vector<int64_t> drawn(const PatternSite& site, int64_t head, int64_t row) const {
    const RandomKey key = block_row_key(seed, site.layer, head, row);
    if (site.causal) return distinct_draws(key, row, blocks);
    auto out = distinct_draws(key, (site.length + block - 1) / block - 1, blocks);
    for (int64_t& b : out) b += b >= row ? 1 : 0;
    return out;
  }
  int64_t multiplicity(const PatternSite& site,
                       int64_t head,
                       int64_t query,
                       int64_t key) const override {
    if (site.causal && key > query) return 0;
    if (std::abs(query - key) < block) return 1;
    const auto own = drawn(site, head, query / block);
    return std::binary_search(own.begin(), own.end(), key / block) ? 1 : 0;
  }
  void counts(const PatternSite& site,
              int64_t head,
              KeyRange queries,
              KeyRange keys,
              int8_t* out,
              int64_t stride) const override {
    std::vector<int64_t> own;
    for (int64_t query = queries.begin; query < queries.end; ++query, out += stride) {
      if (query == queries.begin || query % block == 0) own = drawn(site, head, query / block);
      const KeyRange past = past_of(site, query, keys);
      set_counts(keys, keys, 0, out);
      set_counts(keys, common(past, {query - block + 1, query + block}), 1, out);
      for (const int64_t b : own)
        set_counts(keys, common(past, {b * block, (b + 1) * block}), 1, out);
    }
  }
  std::vector<KeyRange> ranges(const PatternSite& site,
                               int64_t head,
                               int64_t begin,
                               int64_t end) const override {
    std::vector<KeyRange> out{{begin - block + 1, end + block - 1}};
    for (int64_t row = begin / block; row <= (end - 1) / block; ++row)
      for (const int64_t b : drawn(site, head, row)) out.push_back({b * block, (b + 1) * block});
    return tidy_ranges(std::move(out), last_key(site, end));
  }
  bool same_for_heads() const override { return blocks == 0; }
  int64_t keys_met(int64_t context) const override {
    return std::min(context, block * (1 + blocks));
  }
};

}  // namespace tessera::nn
