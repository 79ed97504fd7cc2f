// Who may attend to whom in one document: the predicate, and the ranges of keys that are worth
// looking at. Tiled attention asks for a block of queries at a time, so that what a pattern hides
// costs nothing.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::kernels {

/// Positions [begin, end).
struct KeyRange {
  int64_t begin = 0, end = 0;
};

class Visibility {
 public:
  virtual ~Visibility() = default;
  /// How often the query at position `query` counts the key at position `key`: 0 = hidden, 2 = its
  /// weight counts twice (BigBird). Causality included.
  virtual int64_t multiplicity(int64_t head, int64_t query, int64_t key) const = 0;
  /// Ranges that hold every key some query of [begin, end) sees, ascending and disjoint, within the
  /// document.
  virtual std::vector<KeyRange> ranges(int64_t head, int64_t begin, int64_t end) const = 0;
  /// Whether all heads see the same, so that head 0 speaks for all.
  virtual bool same_for_heads() const { return true; }
};

}  // namespace tessera::kernels
