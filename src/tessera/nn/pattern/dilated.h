// Dilated attention (LongNet): branches (segment w, dilation r). Head h has the offset o in each;
// inside segments of w tokens it sees every r-th from o, and only such queries take part:
//   J_b(i) = {j : floor(j / w) = floor(i / w), (j mod w) mod r = o}   if (i mod w) mod r = o
// (causal: and j <= i). The branches' outputs are weighed by their sums of exponentials, which is
// one softmax over the multiset union: a key of two branches counts twice. A query of no branch
// gives 0; a branch with r = 1 covers all.
// Ding et al. 2023, arXiv:2307.02486. Golden: additions, section 4.
#pragma once

#include "tessera/nn/pattern/pattern_config.h"

namespace tessera::nn {

enum class DilatedOffset {
  modulo,  // h mod r (paper)
  blocks,  // floor(h / ceil(H / r)), neighbouring heads together (torchscale)
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::DilatedOffset> {
  using D = nn::DilatedOffset;
  static constexpr std::array names{std::pair{D::modulo, "modulo"}, std::pair{D::blocks, "blocks"}};
};

namespace tessera::nn {

struct DilatedPatternConfig final : PatternBase<DilatedPatternConfig> {
  std::vector<int64_t> segments;
  std::vector<int64_t> dilations;
  DilatedOffset offset = DilatedOffset::modulo;

  static constexpr auto fields() {
    using C = DilatedPatternConfig;
    return std::tuple{spec::field("segments", &C::segments, "tokens in a segment, per branch",
                                  {.required = true}),
                      spec::field("dilations", &C::dilations, "distance of the keys, per branch",
                                  {.required = true}),
                      spec::field("offset", &C::offset, "first token of a head inside a segment")};
  }
  static spec::Json example(const spec::Scope&, int64_t length) {
    // as in the paper: segments four times as long with a quarter of the keys, up to the document
    spec::Json segments = {128}, dilations = {1};
    for (int64_t w = 512; w <= length; w *= 4) {
      segments.push_back(w);
      dilations.push_back(w / 128);
    }
    return {{"segments", segments}, {"dilations", dilations}};
  }
  static spec::Info info() {
    return {.summary = "Segments of growing length with keys at growing distance (LongNet).",
            .paper =
                "Ding et al.: LongNet: Scaling Transformers to 1,000,000,000 Tokens, "
                "arXiv:2307.02486",
            .year = 2023,
            .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override {
    if (segments.empty() || segments.size() != dilations.size())
      fail(ErrorKind::spec, scope.path,
           "{} segments and {} dilations; expected a pair for every branch, at least one",
           segments.size(), dilations.size());
    if (static_cast<int64_t>(segments.size()) > kernels::Visibility::kMostOften)
      fail(ErrorKind::spec, scope.path, "{} segments; expected at most {}", segments.size(),
           kernels::Visibility::kMostOften);
    for (size_t b = 0; b < segments.size(); ++b) {
      if (segments[b] < 1 || segments[b] > int64_t{1} << 40)
        fail(ErrorKind::spec, scope.path, "segments[{}] = {}; expected 1 to 2^40", b, segments[b]);
      if (dilations[b] < 1 || dilations[b] > segments[b])
        fail(ErrorKind::spec, scope.path, "dilations[{}] = {}; expected 1 to its segment of {}", b,
             dilations[b], segments[b]);
    }
    if (offset != DilatedOffset::modulo && same_for_heads())
      fail(ErrorKind::spec, scope.path,
           "offset {} where all dilations are 1 and no head has one; leave it out",
           spec::enum_name(offset));
  }
  int64_t offset_of(const PatternSite& site, int64_t head, int64_t dilation) const {
    if (offset == DilatedOffset::modulo) return head % dilation;
    return head / ((site.n_heads + dilation - 1) / dilation);
  }
  int64_t multiplicity(const PatternSite& site,
                       int64_t head,
                       int64_t query,
                       int64_t key) const override {
    if (site.causal && key > query) return 0;
    int64_t count = 0;
    for (size_t b = 0; b < segments.size(); ++b) {
      const int64_t w = segments[b], r = dilations[b], o = offset_of(site, head, r);
      count += query / w == key / w && query % w % r == o && key % w % r == o ? 1 : 0;
    }
    return count;
  }
  /// Branch b as the query sees it: its first key, where its keys end, and how far apart they are;
  /// none where the query does not take part.
  struct Branch {
    int64_t first, end, step;
  };
  Branch branch(const PatternSite& site, size_t b, int64_t head, int64_t query) const {
    const int64_t w = segments[b], r = dilations[b], o = offset_of(site, head, r),
                  begin = query / w * w;
    if ((query - begin) % r != o) return {0, 0, r};
    return {begin + o, std::min(begin + w, last_key(site, query + 1)), r};
  }
  bool list(const PatternSite& site,
            int64_t head,
            int64_t query,
            int64_t end,
            std::vector<VisibleKey>& out) const override {
    out.clear();
    for (size_t b = 0; b < segments.size(); ++b) {
      const Branch keys = branch(site, b, head, query);
      const auto before = static_cast<std::ptrdiff_t>(out.size());
      for (int64_t key = keys.first; key < std::min(keys.end, end); key += keys.step)
        out.push_back({key, 1});
      const auto earlier = [](const VisibleKey& x, const VisibleKey& y) { return x.key < y.key; };
      std::inplace_merge(out.begin(), out.begin() + before, out.end(), earlier);
    }
    // a key of several branches, once
    size_t n = 0;
    for (const VisibleKey& next : out)
      if (n > 0 && out[n - 1].key == next.key)
        ++out[n - 1].times;
      else
        out[n++] = next;
    out.resize(n);
    return true;
  }
  std::vector<KeyRange> ranges(const PatternSite& site,
                               int64_t head,
                               int64_t begin,
                               int64_t end) const override {
    const int64_t last = last_key(site, end);
    std::vector<KeyRange> out;
    for (size_t b = 0; b < segments.size(); ++b) {
      const int64_t w = segments[b], r = dilations[b], o = offset_of(site, head, r);
      // a few queries may all lie between the branch's tokens
      bool takes_part = end - begin >= r;
      for (int64_t i = begin; i < end && !takes_part; ++i) takes_part = i % w % r == o;
      if (!takes_part) continue;
      const KeyRange touched{begin / w * w, ((end - 1) / w + 1) * w};
      if (r == 1) out.push_back(touched);
      for (int64_t first = touched.begin; r > 1 && first < touched.end; first += w)
        for (int64_t key = first + o; key < std::min(first + w, last); key += r)
          out.push_back({key, key + 1});
    }
    return tidy_ranges(std::move(out), last);
  }
  bool same_for_heads() const override {
    return std::all_of(dilations.begin(), dilations.end(), [](int64_t r) { return r == 1; });
  }
  bool scattered() const override { return !same_for_heads(); }
  int64_t horizon() const override { return *std::max_element(segments.begin(), segments.end()); }
  int64_t keys_met(int64_t context) const override {
    int64_t keys = 0;
    for (size_t b = 0; b < segments.size(); ++b)
      keys += std::min(context, segments[b]) / (dilations[b] * dilations[b]) + 1;
    return std::min(context, keys);
  }
};

}  // namespace tessera::nn
