// Strided sparse attention: the last `stride` keys, and every stride-th one before the query.
//   A1 = {j : i - stride < j <= i},   A2 = {j <= i : (i - j) mod stride = 0}
// Bidirectional: |i - j| < stride, and the same remainder on both sides. With the two sets every
// earlier token is reached in two steps. Cost O(T sqrt T) for stride = sqrt T.
// Child et al. 2019, arXiv:1904.10509, sec. 4.3. Golden: attention, section 9.
#pragma once

#include <cmath>
#include <cstdlib>

#include "tessera/nn/pattern/factorised.h"

namespace tessera::nn {

struct StridedPatternConfig final : PatternBase<StridedPatternConfig> {
  int64_t stride = 0;
  Factors combine = Factors::merged;

  static constexpr auto fields() {
    using C = StridedPatternConfig;
    return std::tuple{
        spec::field("stride", &C::stride, "width of the window and step of the rest",
                    {.min = 1, .required = true}),
        spec::field("combine", &C::combine, "how heads and layers take the two sets")};
  }
  static spec::Json example(const spec::Scope&, int64_t length) {
    return {{"stride", std::max<int64_t>(2, std::lround(std::sqrt(length)))}};
  }
  static spec::Info info() {
    return {.summary = "The last keys and every stride-th one before them.",
            .paper =
                "Child et al.: Generating Long Sequences with Sparse Transformers, "
                "arXiv:1904.10509",
            .year = 2019,
            .forms = {.recurrent = true},
            .time = spec::Growth::three_halves};
  }
  void check_heads(const spec::Scope& scope, int64_t n_heads) const override {
    check_factor_heads(combine, scope, n_heads);
  }
  int64_t multiplicity(const PatternSite& site,
                       int64_t head,
                       int64_t query,
                       int64_t key) const override {
    if (site.causal && key > query) return 0;
    const FactorChoice sets = factors_of(combine, site, head);
    const int64_t distance = std::abs(query - key);
    return (sets.first && distance < stride) || (sets.second && distance % stride == 0) ? 1 : 0;
  }
  std::vector<KeyRange> ranges(const PatternSite& site,
                               int64_t head,
                               int64_t begin,
                               int64_t end) const override {
    const FactorChoice sets = factors_of(combine, site, head);
    const int64_t last = last_key(site, end);
    std::vector<KeyRange> out;
    KeyRange near;
    if (sets.first) near = {begin - stride + 1, end + stride - 1};
    if (sets.second)
      add_periodic(out, stride, begin % stride, begin % stride + end - begin, last, near);
    else
      out.push_back(near);
    return tidy_ranges(std::move(out), last);
  }
  Seen tile(const PatternSite& site, int64_t head, KeyRange queries, KeyRange keys) const override {
    if (site.causal && all_future(queries, keys)) return Seen::none;
    const bool near =
        queries.end - 1 - keys.begin < stride && keys.end - 1 - queries.begin < stride;
    if (factors_of(combine, site, head).first && near && (!site.causal || all_past(queries, keys)))
      return Seen::all;
    return Seen::some;
  }
  bool same_for_heads() const override { return combine != Factors::multihead; }
  bool scattered() const override { return true; }
  int64_t keys_met(int64_t context) const override {
    const int64_t near = std::min(context, stride), far = context / stride + 1;
    return std::min(context, combine == Factors::merged ? near + far : (near + far) / 2);
  }
};

}  // namespace tessera::nn
