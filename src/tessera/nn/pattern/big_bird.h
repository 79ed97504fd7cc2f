// Big Bird: blocks of keys by window, global blocks and random blocks. With blocks of `block`
// tokens, n of them in the document, a query of block a sees
//   everything                                  when a = 0 or a = n - 1
//   {0, n - 1, a - 1, a, a + 1} and R_h(a)      otherwise, R_h(a) `random` blocks of each head
// A block that R names and the rest holds too counts twice. The paper's is an encoder's. The causal
// form is this project's own: keys after the query are hidden, R is drawn among the earlier blocks,
// and the last block, which is known at the end of the document only, is one like the others.
// Zaheer et al. 2020, arXiv:2007.14062. The reference draws nothing at inference: R = (0, ..., 0).
#pragma once

#include "tessera/nn/pattern/pattern_config.h"
#include "tessera/nn/pattern/random_blocks.h"

namespace tessera::nn {

enum class BigBirdDraw {
  seeded,      // distinct blocks outside of window and global blocks
  first_block  // always block 0, `random` times more: the reference at inference
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::BigBirdDraw> {
  static constexpr std::array names{std::pair{nn::BigBirdDraw::seeded, "seeded"},
                                    std::pair{nn::BigBirdDraw::first_block, "first_block"}};
};

namespace tessera::nn {

struct BigBirdPatternConfig final : PatternBase<BigBirdPatternConfig> {
  int64_t block = 64;
  int64_t random = 3;
  BigBirdDraw draw = BigBirdDraw::seeded;
  int64_t seed = 0;
  int64_t full_up_to = 0;

  static constexpr auto fields() {
    using C = BigBirdPatternConfig;
    return std::tuple{
        spec::field("block", &C::block, "tokens in a block", {.min = 1}),
        spec::field("random", &C::random, "random blocks per block of queries",
                    {.min = 0, .max = kernels::Visibility::kMostOften - 1}),
        spec::field("draw", &C::draw, "where random blocks come from"),
        spec::field("seed", &C::seed, "of the draw", {.min = 0}),
        spec::field("full_up_to", &C::full_up_to,
                    "documents up to this length see everything; the reference: (5 + 2 random) "
                    "block. Encoders only",
                    {.min = 0})};
  }
  static spec::Json example(const spec::Scope&, int64_t) { return {{"block", 32}}; }
  static spec::Info info() {
    return {.summary =
                "Window, global blocks and random blocks; a decoder has this project's own causal "
                "form, whose last block is not global.",
            .paper = "Zaheer et al.: Big Bird: Transformers for Longer Sequences, arXiv:2007.14062",
            .year = 2020,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override {
    if (draw == BigBirdDraw::first_block && random == 0)
      fail(ErrorKind::spec, scope.path,
           "draw first_block with random = 0: no block is drawn; set random, or leave it out");
    if (seed != 0 && (draw == BigBirdDraw::first_block || random == 0))
      fail(ErrorKind::spec, scope.path,
           "seed = {} and nothing is drawn by it: draw is {}, random {}; leave it out", seed,
           spec::enum_name(draw), random);
    if (scope.causal && full_up_to > 0)
      fail(ErrorKind::spec, scope.path,
           "full_up_to = {} in a causal stack, where the past cannot know the document's length; "
           "expected 0",
           full_up_to);
  }
  bool everything(const PatternSite& site) const {
    return !site.causal && site.length <= full_up_to;
  }
  int64_t n_blocks(const PatternSite& site) const { return (site.length + block - 1) / block; }
  bool global_row(const PatternSite& site, int64_t row) const {
    return row == 0 || (!site.causal && row == n_blocks(site) - 1);
  }
  /// R_h(row): ascending; block 0 several times where draw is first_block.
  std::vector<int64_t> drawn(const PatternSite& site, int64_t head, int64_t row) const {
    if (draw == BigBirdDraw::first_block)
      return std::vector<int64_t>(static_cast<size_t>(random), 0);
    const RandomKey key = block_row_key(seed, site.layer, head, row);
    // candidates: 1 .. row - 2, and after the window up to the last but one
    const int64_t before = std::max<int64_t>(0, row - 2);
    const int64_t after = site.causal ? 0 : std::max<int64_t>(0, n_blocks(site) - 3 - row);
    auto out = distinct_draws(key, before + after, random);
    for (int64_t& b : out) b += b < before ? 1 : row + 2 - before;
    return out;
  }
  /// How often a query of block `row` counts the keys of block b, causality aside.
  int64_t times(const PatternSite& site,
                const std::vector<int64_t>& random_blocks,
                int64_t row,
                int64_t b) const {
    if (global_row(site, row) || everything(site)) return 1;
    const bool set = b == 0 || (!site.causal && b == n_blocks(site) - 1) || std::abs(b - row) <= 1;
    return (set ? 1 : 0) + std::count(random_blocks.begin(), random_blocks.end(), b);
  }
  int64_t multiplicity(const PatternSite& site,
                       int64_t head,
                       int64_t query,
                       int64_t key) const override {
    if (site.causal && key > query) return 0;
    const int64_t row = query / block;
    return times(site, drawn(site, head, row), row, key / block);
  }
  void counts(const PatternSite& site,
              int64_t head,
              KeyRange queries,
              KeyRange keys,
              int8_t* out,
              int64_t stride) const override {
    for (int64_t query = queries.begin; query < queries.end;) {
      const int64_t row = query / block, end = std::min(queries.end, (row + 1) * block);
      const auto blocks = drawn(site, head, row);
      // a block of keys for all queries of the row's block
      for (int64_t b = keys.begin / block; b * block < keys.end; ++b) {
        const KeyRange here{b * block, (b + 1) * block};
        const int64_t count = times(site, blocks, row, b);
        for (int64_t q = query; q < end; ++q) {
          int8_t* to = out + (q - queries.begin) * stride;
          set_counts(keys, here, 0, to);
          set_counts(keys, past_of(site, q, here), count, to);
        }
      }
      query = end;
    }
  }
  std::vector<KeyRange> ranges(const PatternSite& site,
                               int64_t head,
                               int64_t begin,
                               int64_t end) const override {
    const int64_t n = n_blocks(site);
    std::vector<KeyRange> out;
    const auto add = [&](int64_t b) { out.push_back({b * block, (b + 1) * block}); };
    for (int64_t row = begin / block; row <= (end - 1) / block; ++row) {
      if (global_row(site, row) || everything(site)) return {{0, last_key(site, end)}};
      for (const int64_t b : {int64_t{0}, row - 1, row, row + 1}) add(b);
      if (!site.causal) add(n - 1);
      for (const int64_t b : drawn(site, head, row)) add(b);
    }
    return tidy_ranges(std::move(out), last_key(site, end));
  }
  Seen tile(const PatternSite& site, int64_t head, KeyRange queries, KeyRange keys) const override {
    if (site.causal && all_future(queries, keys)) return Seen::none;
    if (site.causal && !all_past(queries, keys)) return Seen::some;
    for (int64_t row = queries.begin / block; row <= (queries.end - 1) / block; ++row) {
      if (global_row(site, row) || everything(site)) continue;
      const auto blocks = drawn(site, head, row);
      for (int64_t b = keys.begin / block; b <= (keys.end - 1) / block; ++b)
        if (times(site, blocks, row, b) != 1) return Seen::some;
    }
    return Seen::all;
  }
  bool same_for_heads() const override { return draw == BigBirdDraw::first_block || random == 0; }
  int64_t keys_met(int64_t context) const override {
    return std::min(context, block * (5 + random));
  }
};

}  // namespace tessera::nn
