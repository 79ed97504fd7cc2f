// Block-sparse attention, local and vertical: blocks of tokens see the last few blocks and every
// stride-th block of the document, shifted from head to head so that the heads together see all.
//   query block a sees key block b:  a - b < local, or (b + h s + 1) mod stride = 0
// with s = max(1, floor(stride / n_heads)) and query heads h from 0; of its own block a query sees
// no later token. Bidirectional: |a - b| < local. Abdin et al. 2024, arXiv:2404.14219, sec. 2
// (Phi-3-small, whose layers alternate with full attention); the shift as in its released code.
#pragma once

#include <cstdlib>

#include "tessera/nn/pattern/factorised.h"

namespace tessera::nn {

struct BlockSparsePatternConfig final : PatternBase<BlockSparsePatternConfig> {
  int64_t block = 64;
  int64_t local = 16;
  int64_t stride = 8;
  bool shift = true;

  static constexpr auto fields() {
    using C = BlockSparsePatternConfig;
    return std::tuple{
        spec::field("block", &C::block, "tokens of a block", {.min = 1}),
        spec::field("local", &C::local, "last blocks that are seen, its own included", {.min = 1}),
        spec::field("stride", &C::stride, "blocks from one that is always seen to the next",
                    {.min = 1}),
        spec::field("shift", &C::shift, "whether these blocks differ from head to head")};
  }
  static spec::Info info() {
    return {.summary = "The last blocks of tokens and every few blocks before, other ones by head.",
            .paper =
                "Abdin et al.: Phi-3 Technical Report: A Highly Capable Language Model Locally on "
                "Your Phone, arXiv:2404.14219",
            .year = 2024,
            .forms = {.recurrent = true},
            .time = spec::Growth::quadratic};
  }
  /// The first of the blocks that head `head` always sees.
  int64_t first_seen(const PatternSite& site, int64_t head) const {
    const int64_t step = std::max<int64_t>(1, stride / std::max<int64_t>(1, site.n_heads));
    return stride - 1 - (shift ? head * step % stride : 0);
  }
  int64_t multiplicity(const PatternSite& site,
                       int64_t head,
                       int64_t query,
                       int64_t key) const override {
    if (site.causal && key > query) return 0;
    const int64_t b = key / block;
    return std::abs(query / block - b) < local || b % stride == first_seen(site, head) ? 1 : 0;
  }
  std::vector<KeyRange> ranges(const PatternSite& site,
                               int64_t head,
                               int64_t begin,
                               int64_t end) const override {
    const int64_t last = last_key(site, end), first = first_seen(site, head) * block;
    std::vector<KeyRange> out;
    add_periodic(out, stride * block, first, first + block, last,
                 {(begin / block - local + 1) * block, ((end - 1) / block + local) * block});
    return tidy_ranges(std::move(out), last);
  }
  Seen tile(const PatternSite& site, int64_t head, KeyRange queries, KeyRange keys) const override {
    if (site.causal && all_future(queries, keys)) return Seen::none;
    if (site.causal && !all_past(queries, keys)) return Seen::some;
    const int64_t first = keys.begin / block, last = (keys.end - 1) / block;
    const bool near =
        (queries.end - 1) / block - first < local && last - queries.begin / block < local;
    return near || (first == last && first % stride == first_seen(site, head)) ? Seen::all
                                                                               : Seen::some;
  }
  bool same_for_heads() const override { return !shift; }
  int64_t keys_met(int64_t context) const override {
    return std::min(context, local * block + context / stride);
  }
};

}  // namespace tessera::nn
