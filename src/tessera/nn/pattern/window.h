// Sliding window. Causal: a query at p sees keys p - width < j <= p, `width` keys with its own.
// Bidirectional: |p - j| <= width / 2, so 2 * (width / 2) + 1 keys; with `right` unequal sides,
// p - (width - 1 - right) <= j <= p + right, so `width` keys.
// Beltagy et al. 2020, arXiv:2004.05150; Jiang et al. 2023, arXiv:2310.06825 (rolling cache).
#pragma once

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <tuple>

#include "tessera/nn/pattern/pattern_config.h"

namespace tessera::nn {

struct WindowPatternConfig final : PatternBase<WindowPatternConfig> {
  int64_t width = 0;
  std::optional<int64_t> right;

  static constexpr auto fields() {
    using C = WindowPatternConfig;
    return std::tuple{
        spec::field(
            "width", &C::width,
            "tokens in the window, the query's own included; an encoder's reaches floor(width "
            "/ 2) to either side, so that width 4 sees 5",
            {.min = 1, .required = true}),
        spec::field(
            "right", &C::right,
            "in an encoder: tokens of the window that follow the query (right side); width - 1 "
            "- right precede it (left side); null = floor(width / 2) on either side",
            {.min = 0})};
  }
  static spec::Json example(const spec::Scope&, int64_t) { return {{"width", 128}}; }
  static spec::Info info() {
    return {.summary =
                "Every query sees the last `width` keys only, in an encoder those with |i - j| <= "
                "floor(width / 2), or `right` keys after it and width - 1 - right before it; the "
                "cache is a ring of that size.",
            .paper =
                "Beltagy, Peters, Cohan: Longformer, arXiv:2004.05150; Jiang et al.: Mistral 7B, "
                "arXiv:2310.06825",
            .year = 2020,
            .forms = {.recurrent = true, .recorded = true}};
  }
  void check(const spec::Scope& scope) const override {
    if (!right) return;
    if (scope.causal)
      fail(ErrorKind::spec, scope.path,
           "right = {} needs an encoder: a decoder's window ends with the query; leave it out",
           *right);
    if (*right >= width)
      fail(ErrorKind::spec, scope.path,
           "right = {} in a window of {}, the query included; expected at most {}", *right, width,
           width - 1);
  }
  int64_t multiplicity(const PatternSite& site,
                       int64_t /*head*/,
                       int64_t query,
                       int64_t key) const override {
    if (site.causal) return key <= query && key > query - width ? 1 : 0;
    if (right) return key >= query - left() && key <= query + *right ? 1 : 0;
    return std::abs(query - key) <= width / 2 ? 1 : 0;
  }
  std::vector<KeyRange> ranges(const PatternSite& site,
                               int64_t /*head*/,
                               int64_t begin,
                               int64_t end) const override {
    if (site.causal) return {{std::max<int64_t>(0, begin - width + 1), std::min(end, site.length)}};
    return {{std::max<int64_t>(0, begin - left()),
             std::min(site.length, end + right.value_or(width / 2))}};
  }
  Seen tile(const PatternSite& site,
            int64_t /*head*/,
            KeyRange queries,
            KeyRange keys) const override {
    const int64_t after = site.causal ? 0 : right.value_or(width / 2),
                  before = site.causal ? width - 1 : left();
    if (keys.end <= queries.begin - before || keys.begin >= queries.end + after) return Seen::none;
    const bool all =
        keys.begin >= queries.end - 1 - before && keys.end - 1 <= queries.begin + after;
    return all ? Seen::all : Seen::some;
  }
  std::optional<int64_t> window() const override {
    return right ? std::nullopt : std::optional(width);
  }
  int64_t horizon() const override { return width; }

 private:
  /// Tokens before the query that an encoder's window holds.
  int64_t left() const { return right ? width - 1 - *right : width / 2; }
};

}  // namespace tessera::nn
