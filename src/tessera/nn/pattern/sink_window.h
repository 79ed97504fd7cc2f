// Attention sinks with a window (StreamingLLM): a query sees the first `first` tokens of the
// document and the last `width` ones, its own included. The cache holds just these.
//   j visible to i  iff  j <= i  and  (j < first  or  j > i - width)
// Positions are those inside the cache: window keys keep their distance, and a query beyond the
// cache's size is, for the first tokens, at its last place first + width - 1. Rotary keys can
// therefore be cached as rotated at their own position; only the query needs a second rotation.
// Xiao et al. 2023, arXiv:2309.17453.
#pragma once

#include "tessera/nn/pattern/pattern_config.h"

namespace tessera::nn {

struct SinkWindowPatternConfig final : PatternBase<SinkWindowPatternConfig> {
  int64_t first = 4;
  int64_t width = 0;

  static constexpr auto fields() {
    using C = SinkWindowPatternConfig;
    return std::tuple{
        spec::field("first", &C::first, "tokens at the start of a document that stay visible",
                    {.min = 1}),
        spec::field("width", &C::width, "tokens in the window, the query's own included",
                    {.min = 1, .required = true})};
  }
  static spec::Json example(const spec::Scope&, int64_t) { return {{"width", 128}}; }
  static spec::Info info() {
    return {.summary =
                "A sliding window and the first tokens (attention sinks, StreamingLLM); positions "
                "count inside the cache.",
            .paper =
                "Xiao et al.: Efficient Streaming Language Models with Attention Sinks, "
                "arXiv:2309.17453",
            .year = 2023,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override {
    if (!scope.causal)
      fail(ErrorKind::spec, scope.path,
           "sink_window is causal and cannot stand in an encoder; use window or longformer there");
  }
  int64_t multiplicity(const PatternSite& /*site*/,
                       int64_t /*head*/,
                       int64_t query,
                       int64_t key) const override {
    return key <= query && (key < first || key > query - width) ? 1 : 0;
  }
  std::vector<KeyRange> ranges(const PatternSite& site,
                               int64_t /*head*/,
                               int64_t begin,
                               int64_t end) const override {
    return tidy_ranges({{0, std::min(first, end)}, {begin - width + 1, end}}, site.length);
  }
  Seen tile(const PatternSite& /*site*/,
            int64_t /*head*/,
            KeyRange queries,
            KeyRange keys) const override {
    if (all_future(queries, keys)) return Seen::none;
    if (keys.begin >= first && keys.end - 1 <= queries.begin - width) return Seen::none;
    const bool kept = keys.end <= first || keys.begin > queries.end - 1 - width ||
                      first > queries.end - 1 - width;
    return kept && all_past(queries, keys) ? Seen::all : Seen::some;
  }
  int64_t horizon() const override { return width; }
  int64_t first_kept() const override { return first; }
  int64_t farthest() const override { return first + width - 1; }
};

}  // namespace tessera::nn
