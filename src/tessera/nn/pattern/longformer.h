// Longformer: a window that may be dilated, and global tokens that see everything and are seen by
// everything. With w = width / 2, dilation d and the set G of global positions:
//   j visible to i  iff  i in G,  or  j in G,  or  j = i + d m with |m| <= w   (causal: and j <= i)
// G is `global_tokens` and what the batch marks (Batch::global_N). A key is counted once, even when
// it is both global and in the window. With projections of their own, global tokens read, and are
// answered, through a second set of q, k and v, which replaces the result of their rows.
// Beltagy et al. 2020, arXiv:2004.05150. Golden: attention G8.
#pragma once

#include <cstdlib>

#include "tessera/nn/pattern/pattern_config.h"

namespace tessera::nn {

enum class GlobalProjections { shared, separate };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::GlobalProjections> {
  using G = nn::GlobalProjections;
  static constexpr std::array names{std::pair{G::shared, "shared"},
                                    std::pair{G::separate, "separate"}};
};

namespace tessera::nn {

struct LongformerPatternConfig final : PatternBase<LongformerPatternConfig> {
  int64_t width = 0;
  std::vector<int64_t> dilations = {1};
  std::vector<int64_t> global_tokens;
  GlobalProjections projections = GlobalProjections::shared;

  static constexpr auto fields() {
    using C = LongformerPatternConfig;
    return std::tuple{
        spec::field("width", &C::width, "keys of the window, half of them on either side; even",
                    {.min = 2, .required = true}),
        spec::field("dilations", &C::dilations,
                    "distance of neighbouring keys of the window: one number, or one per head"),
        spec::field("global_tokens", &C::global_tokens,
                    "positions that are global in every document"),
        spec::field("projections", &C::projections, "which q, k and v global tokens use")};
  }
  static spec::Json example(const spec::Scope&, int64_t) {
    return {{"width", 128}, {"global_tokens", {0}}};
  }
  static spec::Info info() {
    return {.summary = "A window, dilated or not, and global tokens.",
            .paper =
                "Beltagy, Peters, Cohan: Longformer: The Long-Document Transformer, "
                "arXiv:2004.05150",
            .year = 2020,
            .forms = {.recurrent = true}};
  }
  void complete(const spec::Scope&) override {
    std::sort(global_tokens.begin(), global_tokens.end());
  }
  void check(const spec::Scope& scope) const override {
    if (width % 2 != 0)
      fail(ErrorKind::spec, scope.path, "width = {}; expected an even number, half on either side",
           width);
    if (dilations.empty())
      fail(ErrorKind::spec, scope.path, "dilations = []; expected one number, or one per head");
    for (const int64_t d : dilations)
      if (d < 1 || d > int64_t{1} << 20)
        fail(ErrorKind::spec, scope.path, "dilations hold {}; expected 1 to 1048576", d);
    if (!global_tokens.empty() && global_tokens.front() < 0)
      fail(ErrorKind::spec, scope.path, "global_tokens hold {}; expected positions from 0",
           global_tokens.front());
  }
  void check_heads(const spec::Scope& scope, int64_t n_heads) const override {
    if (dilations.size() != 1 && static_cast<int64_t>(dilations.size()) != n_heads)
      fail(ErrorKind::spec, scope.path, "{} dilations for {} heads; expected one, or one per head",
           dilations.size(), n_heads);
  }
  int64_t dilation(int64_t head) const {
    return dilations[dilations.size() == 1 ? 0 : static_cast<size_t>(head)];
  }
  bool is_global(const PatternSite& site, int64_t position) const override {
    return std::binary_search(global_tokens.begin(), global_tokens.end(), position) ||
           (site.global && position < static_cast<int64_t>(site.global->size()) &&
            (*site.global)[static_cast<size_t>(position)] != 0);
  }
  bool global_projections() const override { return projections == GlobalProjections::separate; }
  int64_t multiplicity(const PatternSite& site,
                       int64_t head,
                       int64_t query,
                       int64_t key) const override {
    if (site.causal && key > query) return 0;
    const int64_t d = dilation(head), distance = std::abs(query - key);
    return (distance % d == 0 && distance / d <= width / 2) || is_global(site, key) ||
                   is_global(site, query)
               ? 1
               : 0;
  }
  void counts(const PatternSite& site,
              int64_t head,
              KeyRange queries,
              KeyRange keys,
              int8_t* out,
              int64_t stride) const override {
    const int64_t d = dilation(head), reach = width / 2 * d;
    std::vector<int64_t> globals;
    for (int64_t key = keys.begin; key < keys.end; ++key)
      if (is_global(site, key)) globals.push_back(key);
    for (int64_t query = queries.begin; query < queries.end; ++query, out += stride) {
      const KeyRange past = past_of(site, query, keys),
                     near = common(past, {query - reach, query + reach + 1});
      set_counts(keys, keys, 0, out);
      if (is_global(site, query)) {
        set_counts(keys, past, 1, out);
        continue;
      }
      // the first of the window's keys that lies in the tile
      int64_t key = query - reach;
      if (key < near.begin) key += (near.begin - key + d - 1) / d * d;
      for (; key < near.end; key += d) out[key - keys.begin] = 1;
      for (const int64_t g : globals)
        if (g < past.end) out[g - keys.begin] = 1;
    }
  }
  std::vector<KeyRange> ranges(const PatternSite& site,
                               int64_t head,
                               int64_t begin,
                               int64_t end) const override {
    const int64_t last = last_key(site, end), reach = width / 2 * dilation(head);
    for (int64_t query = begin; query < end; ++query)
      if (is_global(site, query)) return {{0, last}};
    std::vector<KeyRange> out{{begin - reach, end + reach}};
    for (const int64_t g : global_tokens) out.push_back({g, g + 1});
    if (site.global)
      for (int64_t g = 0; g < static_cast<int64_t>(site.global->size()); ++g)
        if ((*site.global)[static_cast<size_t>(g)] != 0) out.push_back({g, g + 1});
    return tidy_ranges(std::move(out), last);
  }
  Seen tile(const PatternSite& site, int64_t head, KeyRange queries, KeyRange keys) const override {
    if (site.causal && all_future(queries, keys)) return Seen::none;
    const bool near =
        queries.end - 1 - keys.begin <= width / 2 && keys.end - 1 - queries.begin <= width / 2;
    return dilation(head) == 1 && near && (!site.causal || all_past(queries, keys)) ? Seen::all
                                                                                    : Seen::some;
  }
  bool same_for_heads() const override { return dilations.size() == 1; }
  int64_t keys_met(int64_t context) const override {
    return std::min(context, width + 1 + static_cast<int64_t>(global_tokens.size()));
  }
};

}  // namespace tessera::nn
