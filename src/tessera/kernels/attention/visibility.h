// Who may attend to whom in one document: the predicate, and the ranges of keys that are worth
// looking at. Tiled attention asks for a block of queries at a time, so that what a pattern hides
// costs nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tessera::kernels {

/// Positions [begin, end).
struct KeyRange {
  int64_t begin = 0, end = 0;
};

/// What the queries of a tile see of its keys: nothing, every key exactly once, or something else.
enum class Seen { none, some, all };

/// A key that a query sees, and how often it counts it.
struct VisibleKey {
  int64_t key = 0;
  int8_t times = 1;
};

class Visibility {
 public:
  static constexpr int64_t kMostOften = 127;  // a multiplicity fits a signed byte

  virtual ~Visibility() = default;
  /// How often the query at position `query` counts the key at position `key`: 0 = hidden, 2 = its
  /// weight counts twice (BigBird). Causality included.
  virtual int64_t multiplicity(int64_t head, int64_t query, int64_t key) const = 0;
  /// The same for all queries and keys of a tile, `stride` numbers from one query to the next.
  virtual void counts(
      int64_t head, KeyRange queries, KeyRange keys, int8_t* out, int64_t stride) const {
    for (int64_t query = queries.begin; query < queries.end; ++query, out += stride)
      for (int64_t key = keys.begin; key < keys.end; ++key)
        out[key - keys.begin] = static_cast<int8_t>(multiplicity(head, query, key));
  }
  /// Ranges that hold every key some query of [begin, end) sees, ascending and disjoint, within the
  /// document.
  virtual std::vector<KeyRange> ranges(int64_t head, int64_t begin, int64_t end) const = 0;
  /// What one query sees of keys [0, end), ascending -> `out`.
  virtual void list(int64_t head, int64_t query, int64_t end, std::vector<VisibleKey>& out) const {
    constexpr int64_t kAtOnce = 256;
    int8_t times[kAtOnce];
    out.clear();
    for (const KeyRange& range : ranges(head, query, query + 1)) {
      const int64_t last = std::min(range.end, end);
      for (int64_t from = std::max<int64_t>(range.begin, 0); from < last; from += kAtOnce) {
        const int64_t to = std::min(from + kAtOnce, last);
        counts(head, {query, query + 1}, {from, to}, times, 0);
        for (int64_t key = from; key < to; ++key)
          if (times[key - from] != 0) out.push_back({key, times[key - from]});
      }
    }
  }
  /// What all queries of `queries` see of all keys of `keys`; `some` where it is not worth knowing.
  virtual Seen tile(int64_t /*head*/, KeyRange /*queries*/, KeyRange /*keys*/) const {
    return Seen::some;
  }
  /// Whether all heads see the same, so that head 0 speaks for all.
  virtual bool same_for_heads() const { return true; }
  /// Whether what a query sees lies scattered over its past: tiles of queries and keys would be
  /// full of hidden pairs, so that each query goes through the list of its own keys. `ranges` of
  /// one query are then about as many as its keys.
  virtual bool scattered() const { return false; }
};

}  // namespace tessera::kernels
