// Fixed sparse attention: the query's own block, and the last `summary` tokens of every block,
// which sum it up for those after it.
//   A1 = {j : floor(j / stride) = floor(i / stride)},   A2 = {j : j mod stride >= stride - summary}
// both with j <= i where causal. With sub_blocks = p heads take different summaries: head h those
// `summary` tokens that lie (h mod p) * summary before the end of each block.
// Child et al. 2019, arXiv:1904.10509, sec. 4.3. Golden: attention, section 9.
#pragma once

#include <cmath>

#include "tessera/nn/pattern/factorised.h"

namespace tessera::nn {

struct FixedPatternConfig final : PatternBase<FixedPatternConfig> {
  int64_t stride = 0;
  int64_t summary = 1;
  int64_t sub_blocks = 1;
  Factors combine = Factors::merged;
  bool self = true;

  static constexpr auto fields() {
    using C = FixedPatternConfig;
    return std::tuple{
        spec::field("stride", &C::stride, "tokens in a block", {.min = 1, .required = true}),
        spec::field("summary", &C::summary, "tokens of each block that all later ones see",
                    {.min = 1}),
        spec::field("sub_blocks", &C::sub_blocks, "summaries that the heads take in turn",
                    {.min = 1}),
        spec::field("combine", &C::combine, "how heads and layers take the two sets"),
        spec::field("self", &C::self,
                    "whether a query always sees its own key; else a query of the second set may "
                    "see none and gives 0")};
  }
  static spec::Json example(const spec::Scope&, int64_t length) {
    return {{"stride", std::max<int64_t>(2, std::lround(std::sqrt(length)))}};
  }
  static spec::Info info() {
    return {.summary = "The query's own block and the last tokens of every block.",
            .paper =
                "Child et al.: Generating Long Sequences with Sparse Transformers, "
                "arXiv:1904.10509",
            .year = 2019,
            .forms = {.recurrent = true},
            .time = spec::Growth::three_halves};
  }
  void check(const spec::Scope& scope) const override {
    if (summary * sub_blocks > stride)
      fail(ErrorKind::spec, scope.path,
           "summary * sub_blocks = {} * {} is more than stride = {}; the summaries must fit into "
           "a block",
           summary, sub_blocks, stride);
    if (!self && combine == Factors::merged)
      fail(ErrorKind::spec, scope.path,
           "self = false with combine merged, where a query's own block holds it; use alternate or "
           "multihead, or leave it out");
  }
  void check_heads(const spec::Scope& scope, int64_t n_heads) const override {
    check_factor_heads(combine, scope, n_heads);
  }
  /// First token of the head's summary inside a block.
  int64_t summary_at(int64_t head) const { return stride - (head % sub_blocks + 1) * summary; }
  int64_t multiplicity(const PatternSite& site,
                       int64_t head,
                       int64_t query,
                       int64_t key) const override {
    if (site.causal && key > query) return 0;
    const FactorChoice sets = factors_of(combine, site, head);
    const int64_t in_block = key % stride - summary_at(head);
    return (sets.first && key / stride == query / stride) ||
                   (sets.second &&
                    ((in_block >= 0 && in_block < summary) || (self && key == query)))
               ? 1
               : 0;
  }
  std::vector<KeyRange> ranges(const PatternSite& site,
                               int64_t head,
                               int64_t begin,
                               int64_t end) const override {
    const FactorChoice sets = factors_of(combine, site, head);
    const int64_t last = last_key(site, end);
    std::vector<KeyRange> out;
    KeyRange near;
    if (sets.first)
      near = {begin / stride * stride, ((end - 1) / stride + 1) * stride};
    else if (self)
      near = {begin, end};
    if (sets.second)
      add_periodic(out, stride, summary_at(head), summary_at(head) + summary, last, near);
    else
      out.push_back(near);
    return tidy_ranges(std::move(out), last);
  }
  Seen tile(const PatternSite& site, int64_t head, KeyRange queries, KeyRange keys) const override {
    if (site.causal && all_future(queries, keys)) return Seen::none;
    const int64_t block = keys.begin / stride;
    const bool own = queries.begin / stride == block && (queries.end - 1) / stride == block &&
                     (keys.end - 1) / stride == block;
    if (factors_of(combine, site, head).first && own && (!site.causal || all_past(queries, keys)))
      return Seen::all;
    return Seen::some;
  }
  bool same_for_heads() const override { return combine != Factors::multihead && sub_blocks == 1; }
  bool scattered() const override { return true; }
  int64_t keys_met(int64_t context) const override {
    const int64_t near = std::min(context, stride / 2 + 1), far = context / stride * summary;
    return std::min(context, combine == Factors::merged ? near + far : (near + far) / 2 + 1);
  }
};

}  // namespace tessera::nn
