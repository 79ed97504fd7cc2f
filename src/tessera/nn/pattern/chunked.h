// Chunked attention: the document falls into chunks of equal size, and a query sees the tokens of
// its own chunk (causal: the earlier ones). The first token of a chunk sees only itself.
//   j visible to i  iff  floor(j / size) = floor(i / size)   (and j <= i)
// Llama 4 (Meta 2025), layers with rotary positions; the block-local attention of Liu et al. 2018,
// arXiv:1801.10198, sec. 4.2.4.
#pragma once

#include "tessera/nn/pattern/pattern_config.h"

namespace tessera::nn {

struct ChunkedPatternConfig final : PatternBase<ChunkedPatternConfig> {
  int64_t size = 0;

  static constexpr auto fields() {
    return std::tuple{spec::field("size", &ChunkedPatternConfig::size, "tokens in a chunk",
                                  {.min = 1, .required = true})};
  }
  static spec::Json example(const spec::Scope&, int64_t) { return {{"size", 128}}; }
  static spec::Info info() {
    return {.summary = "A query sees the tokens of its own chunk only (Llama 4).",
            .paper =
                "Liu et al.: Generating Wikipedia by Summarizing Long Sequences, "
                "arXiv:1801.10198 (local attention by blocks)",
            .year = 2018,
            .forms = {.recurrent = true}};
  }
  int64_t multiplicity(const PatternSite& site,
                       int64_t /*head*/,
                       int64_t query,
                       int64_t key) const override {
    return key / size == query / size && (!site.causal || key <= query) ? 1 : 0;
  }
  void counts(const PatternSite& site,
              int64_t /*head*/,
              KeyRange queries,
              KeyRange keys,
              int8_t* out,
              int64_t stride) const override {
    for (int64_t query = queries.begin; query < queries.end; ++query, out += stride) {
      const int64_t chunk = query / size * size;
      set_counts(keys, keys, 0, out);
      set_counts(keys, past_of(site, query, {chunk, chunk + size}), 1, out);
    }
  }
  std::vector<KeyRange> ranges(const PatternSite& site,
                               int64_t /*head*/,
                               int64_t begin,
                               int64_t end) const override {
    const int64_t last = site.causal ? end : ((end - 1) / size + 1) * size;
    return tidy_ranges({{begin / size * size, last}}, site.length);
  }
  Seen tile(const PatternSite& site,
            int64_t /*head*/,
            KeyRange queries,
            KeyRange keys) const override {
    if (site.causal && all_future(queries, keys)) return Seen::none;
    const int64_t first_q = queries.begin / size, last_q = (queries.end - 1) / size,
                  first_k = keys.begin / size, last_k = (keys.end - 1) / size;
    if (last_k < first_q || last_q < first_k) return Seen::none;
    const bool one = first_q == last_q && first_k == last_k && first_q == first_k;
    return one && (!site.causal || all_past(queries, keys)) ? Seen::all : Seen::some;
  }
  int64_t horizon() const override { return size; }
};

}  // namespace tessera::nn
