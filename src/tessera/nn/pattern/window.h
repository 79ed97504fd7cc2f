// Sliding window. Causal: a query at p sees keys p - width < j <= p, `width` keys with its own.
// Bidirectional: |p - j| <= width / 2, so 2 * (width / 2) + 1 keys.
// Beltagy et al. 2020, arXiv:2004.05150; Jiang et al. 2023, arXiv:2310.06825 (rolling cache).
#pragma once

#include <algorithm>
#include <cstdlib>

#include "tessera/nn/pattern/pattern_config.h"

namespace tessera::nn {

struct WindowPatternConfig final : PatternBase<WindowPatternConfig> {
  int64_t width = 0;

  static constexpr auto fields() {
    return std::tuple{spec::field(
        "width", &WindowPatternConfig::width,
        "tokens in the window, the query's own included; an encoder's reaches floor(width "
        "/ 2) to either side, so that width 4 sees 5",
        {.min = 1, .required = true})};
  }
  static spec::Json example(const spec::Scope&, int64_t) { return {{"width", 128}}; }
  static spec::Info info() {
    return {.summary =
                "Every query sees the last `width` keys only, in an encoder those with |i - j| <= "
                "floor(width / 2); the cache is a ring of that size.",
            .paper =
                "Beltagy, Peters, Cohan: Longformer, arXiv:2004.05150; Jiang et al.: Mistral 7B, "
                "arXiv:2310.06825",
            .year = 2020,
            .forms = {.recurrent = true}};
  }
  int64_t multiplicity(const PatternSite& site,
                       int64_t /*head*/,
                       int64_t query,
                       int64_t key) const override {
    if (site.causal) return key <= query && key > query - width ? 1 : 0;
    return std::abs(query - key) <= width / 2 ? 1 : 0;
  }
  std::vector<KeyRange> ranges(const PatternSite& site,
                               int64_t /*head*/,
                               int64_t begin,
                               int64_t end) const override {
    if (site.causal) return {{std::max<int64_t>(0, begin - width + 1), std::min(end, site.length)}};
    return {{std::max<int64_t>(0, begin - width / 2), std::min(site.length, end + width / 2)}};
  }
  std::optional<int64_t> window() const override { return width; }
  int64_t horizon() const override { return width; }
};

}  // namespace tessera::nn
