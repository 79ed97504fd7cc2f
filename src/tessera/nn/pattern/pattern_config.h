// Who may attend to whom, said once: from the predicate come the dense mask, the range of keys of a
// query and how much of the past a cache keeps.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

/// Keys of one query: positions first .. last, both included; empty when last < first.
struct KeyRange {
  int64_t first = 0, last = -1;
};

struct PatternConfig : spec::Config {
  /// How often the query at position `query` attends to the key at `key`: 0 = not at all. Causality
  /// included.
  virtual int64_t multiplicity(int64_t query, int64_t key, bool causal) const = 0;
  /// The smallest range that holds every visible key of a document of `length` tokens.
  virtual KeyRange range(int64_t query, int64_t length, bool causal) const = 0;
  /// How many of the last tokens a causal cache must keep, the query's own included; 0 = all.
  virtual int64_t horizon() const { return 0; }
  /// Whether every key of range() is visible, so that the range alone describes the pattern.
  virtual bool dense_range() const { return true; }
};

}  // namespace tessera::nn
