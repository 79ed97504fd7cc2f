// Who may attend to whom, said once: from the predicate come the dense mask, the ranges of keys of
// a block of queries and how much of the past a cache keeps.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>

#include "tessera/kernels/visibility.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

using kernels::KeyRange;

/// Where a pattern is asked.
struct PatternSite {
  int64_t layer = 0;
  int64_t n_heads = 1;
  int64_t length = 0;  // tokens of the document so far, those of the call included
  bool causal = true;
};

struct PatternConfig : spec::Config {
  /// How often the query at position `query` counts the key at `key`: 0 = not at all. Causality
  /// included.
  virtual int64_t multiplicity(const PatternSite& site,
                               int64_t head,
                               int64_t query,
                               int64_t key) const = 0;
  /// Ranges that hold every key that some query of [begin, end) sees, ascending and disjoint,
  /// within [0, site.length).
  virtual std::vector<KeyRange> ranges(const PatternSite& site,
                                       int64_t /*head*/,
                                       int64_t /*begin*/,
                                       int64_t end) const {
    return {{0, site.causal ? std::min(end, site.length) : site.length}};
  }
  virtual bool same_for_heads() const { return true; }
  /// When causality and a window are all there is to the pattern: its width, 0 = no limit. Causal:
  /// query - width < key; else |query - key| <= width / 2.
  virtual std::optional<int64_t> window() const { return std::nullopt; }
  /// How many of the last tokens a causal cache must keep, the query's own included; 0 = all.
  virtual int64_t horizon() const { return 0; }
  /// How many of the first tokens it keeps besides.
  virtual int64_t first_kept() const { return 0; }
};

/// A pattern at a site, as attention asks it.
class PatternVisibility final : public kernels::Visibility {
 public:
  PatternVisibility(const PatternConfig& pattern, PatternSite site)
      : pattern_(pattern), site_(site) {}
  int64_t multiplicity(int64_t head, int64_t query, int64_t key) const override {
    return pattern_.multiplicity(site_, head, query, key);
  }
  std::vector<KeyRange> ranges(int64_t head, int64_t begin, int64_t end) const override {
    return pattern_.ranges(site_, head, begin, end);
  }
  bool same_for_heads() const override { return pattern_.same_for_heads(); }

 private:
  const PatternConfig& pattern_;
  PatternSite site_;
};

}  // namespace tessera::nn
