// Attention patterns: one predicate (query, key) gives the dense mask, the ranges of keys of
// a block of queries and how much of the past a cache keeps.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>

#include "tessera/kernels/attention/visibility.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

using kernels::KeyRange;
using kernels::Seen;
using kernels::VisibleKey;

/// Where a pattern is asked: a layer, and a document of the call.
struct PatternSite {
  int64_t layer = 0;
  int64_t n_heads = 1;
  int64_t length = 0;  // tokens of the document so far, those of the call included
  bool causal = true;
  int64_t prefix = 0;  // Segment::prefix
  /// Batch::global_N of this document by position; may be null.
  std::shared_ptr<const std::vector<char>> global = nullptr;
};

struct PatternConfig : spec::Config {
  /// How often the query at position `query` counts the key at `key`: 0 = not at all, at most
  /// kernels::Visibility::kMostOften. Causality included.
  virtual int64_t multiplicity(const PatternSite& site,
                               int64_t head,
                               int64_t query,
                               int64_t key) const = 0;
  /// kernels::Visibility::counts.
  virtual void counts(const PatternSite& site,
                      int64_t head,
                      KeyRange queries,
                      KeyRange keys,
                      int8_t* out,
                      int64_t stride) const = 0;
  /// Ranges that hold every key that some query of [begin, end) sees, ascending and disjoint,
  /// within [0, site.length).
  virtual std::vector<KeyRange> ranges(const PatternSite& site,
                                       int64_t /*head*/,
                                       int64_t /*begin*/,
                                       int64_t end) const {
    return {{0, site.causal ? std::min(end, site.length) : site.length}};
  }
  /// What all of the queries see of all of the keys; `some` where it is not worth knowing.
  virtual Seen tile(const PatternSite&, int64_t /*head*/, KeyRange, KeyRange) const {
    return Seen::some;
  }
  virtual bool same_for_heads() const { return true; }
  /// When causality and a window are all there is to the pattern: its width, 0 = no limit. Causal:
  /// query - width < key; else |query - key| <= width / 2.
  virtual std::optional<int64_t> window() const { return std::nullopt; }
  /// How many of the last tokens a causal cache must keep, the query's own included; 0 = all.
  virtual int64_t horizon() const { return 0; }
  /// How many of the first tokens it keeps in addition.
  virtual int64_t first_kept() const { return 0; }
  /// When positive, position schemes see a query beyond this position as standing at it when it
  /// meets the first_kept() keys.
  virtual int64_t farthest() const { return 0; }
  /// How many of a document's first tokens see each other where its first `given` tokens were given
  /// (Segment::prefix; 0 = unknown).
  virtual int64_t prefix(int64_t /*given*/) const { return 0; }
  /// Keys that a query after `context` tokens attends to, for costs.
  virtual int64_t keys_met(int64_t context) const {
    return horizon() > 0 ? std::min(context, first_kept() + horizon()) : context;
  }
  /// Whether some tokens see, and are seen by, all others.
  virtual bool is_global(const PatternSite&, int64_t /*position*/) const { return false; }
  /// Whether those have projections of their own.
  virtual bool global_projections() const { return false; }
  /// Throws Error(spec) where the pattern does not allow `n_heads`.
  virtual void check_heads(const spec::Scope&, int64_t /*n_heads*/) const {}
  /// Throws Error(input) where a call that starts at `start` cannot be computed.
  virtual void check_call(const PatternSite&, int64_t /*start*/) const {}
  /// kernels::Visibility::scattered.
  virtual bool scattered() const { return false; }
  /// kernels::Visibility::list, where the pattern has a shorter way than its ranges and counts;
  /// false where it has none.
  virtual bool list(const PatternSite&,
                    int64_t /*head*/,
                    int64_t /*query*/,
                    int64_t /*end*/,
                    std::vector<VisibleKey>& /*out*/) const {
    return false;
  }
};

/// Derived classes say `multiplicity`; this asks it for many keys without a virtual call for each.
template <class Derived>
struct PatternBase : PatternConfig {
  void counts(const PatternSite& site,
              int64_t head,
              KeyRange queries,
              KeyRange keys,
              int8_t* out,
              int64_t stride) const override {
    const auto& self = static_cast<const Derived&>(*this);
    for (int64_t query = queries.begin; query < queries.end; ++query, out += stride)
      for (int64_t key = keys.begin; key < keys.end; ++key)
        out[key - keys.begin] =
            static_cast<int8_t>(self.Derived::multiplicity(site, head, query, key));
  }
};

/// Of a mixer with `n_heads` heads under a pattern and a position, which may be null. Throws
/// Error(spec) where they do not go together.
void check_pattern(const spec::AnyPart& pattern,
                   const spec::AnyPart& position,
                   int64_t n_heads,
                   const spec::Scope& scope);
/// Throws Error(spec) where the pattern's global tokens need projections that a mixer has not.
void check_one_projection(const spec::AnyPart& pattern,
                          std::string_view mixer,
                          const spec::Scope& scope);
/// Declarations of entries per token, each kept as long as some query sees it.
std::vector<spec::StateDecl> kept_for(const PatternConfig& who, std::vector<spec::StateDecl> decls);

/// Ranges in any order, overlapping, reaching beyond [0, end): ascending, disjoint, cut.
inline std::vector<KeyRange> tidy_ranges(std::vector<KeyRange> ranges, int64_t end) {
  const auto earlier = [](const KeyRange& a, const KeyRange& b) { return a.begin < b.begin; };
  // long lists are made in order
  if (!std::is_sorted(ranges.begin(), ranges.end(), earlier))
    std::sort(ranges.begin(), ranges.end(), earlier);
  std::vector<KeyRange> out;
  out.reserve(ranges.size());
  for (KeyRange r : ranges) {
    r = {std::max<int64_t>(r.begin, 0), std::min(r.end, end)};
    if (r.begin >= r.end) continue;
    if (!out.empty() && r.begin <= out.back().end)
      out.back().end = std::max(out.back().end, r.end);
    else
      out.push_back(r);
  }
  return out;
}

/// Where the keys of queries before `end` can end.
inline int64_t last_key(const PatternSite& site, int64_t end) {
  return site.causal ? std::min(end, site.length) : site.length;
}

/// The keys that both hold.
inline KeyRange common(KeyRange a, KeyRange b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

/// The keys that causality leaves to a query.
inline KeyRange past_of(const PatternSite& site, int64_t query, KeyRange keys) {
  return site.causal ? common(keys, {keys.begin, query + 1}) : keys;
}

/// Sets the counts of `keys` where they lie in `range`.
inline void set_counts(KeyRange keys, KeyRange range, int64_t times, int8_t* counts) {
  range = common(keys, range);
  if (range.begin < range.end)
    std::fill_n(counts + range.begin - keys.begin, range.end - range.begin,
                static_cast<int8_t>(times));
}

/// Whether every key of a tile is at or before every query, so that causality hides nothing.
inline bool all_past(KeyRange queries, KeyRange keys) {
  return keys.end <= queries.begin + 1;
}

/// Whether every key of a tile is after every query.
inline bool all_future(KeyRange queries, KeyRange keys) {
  return keys.begin >= queries.end;
}

/// A pattern at a site, as attention asks it.
class PatternVisibility final : public kernels::Visibility {
 public:
  PatternVisibility(const PatternConfig& pattern, PatternSite site)
      : pattern_(pattern), site_(std::move(site)) {}
  int64_t multiplicity(int64_t head, int64_t query, int64_t key) const override {
    return pattern_.multiplicity(site_, head, query, key);
  }
  void counts(
      int64_t head, KeyRange queries, KeyRange keys, int8_t* out, int64_t stride) const override {
    pattern_.counts(site_, head, queries, keys, out, stride);
  }
  void list(int64_t head, int64_t query, int64_t end, std::vector<VisibleKey>& out) const override {
    if (!pattern_.list(site_, head, query, end, out)) Visibility::list(head, query, end, out);
  }
  std::vector<KeyRange> ranges(int64_t head, int64_t begin, int64_t end) const override {
    return pattern_.ranges(site_, head, begin, end);
  }
  Seen tile(int64_t head, KeyRange queries, KeyRange keys) const override {
    return pattern_.tile(site_, head, queries, keys);
  }
  bool same_for_heads() const override { return pattern_.same_for_heads(); }
  bool scattered() const override { return pattern_.scattered(); }

 private:
  const PatternConfig& pattern_;
  PatternSite site_;
};

}  // namespace tessera::nn
