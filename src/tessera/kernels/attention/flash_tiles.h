// Tiles of flash_forward.cpp and flash_backward.cpp: some rows against a block of keys, and what
// the rows see of it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tessera/kernels/attention/flash_attention.h"

namespace tessera::kernels {

// Rows of a tile are pairs of a query and a head of one key-value group: row r of the group is
// query r / n, head r % n, n = H / G. So the heads of a group share each load of a key.
constexpr int64_t kMaxTileRows = 96;
constexpr int64_t kMaxTileKeys = 96;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

inline int64_t round_up(int64_t n, int64_t step) {
  return (n + step - 1) / step * step;
}

// what a row of a tile counts that sees each key once
inline constexpr auto kOnce = [] {
  std::array<int8_t, kMaxTileKeys> ones{};
  ones.fill(1);
  return ones;
}();

struct Span {
  int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};

struct FlashShape {
  int64_t n;          // heads of a group
  int64_t rows;       // T n
  int64_t distances;  // T + S - 1
  explicit FlashShape(const FlashAttention& a)
      : n(a.H / a.G), rows(a.T * n), distances(a.T + a.S - 1) {}
};

/// Rows [row, row + count) of group g against keys [first, first + keys), cut at S.
struct Tile {
  int64_t g = 0;
  int64_t row = 0, count = 0;
  int64_t first = 0, keys = 0;
};

/// Which keys of a tile each of its rows sees, by their number in the tile.
struct TileMask {
  Seen seen = Seen::none;
  Span row[kMaxTileRows];
  bool counted = false;  // multiplicities other than 1 inside the spans
  int8_t counts[kMaxTileRows][kMaxTileKeys];
};

/// mask.counts, by a pattern: how often each row counts each of the keys.
inline void count_keys(const FlashAttention& a, const Tile& tile, KeyRange keys, TileMask& mask) {
  const int64_t n = a.H / a.G, skipped = tile.row % n;  // rows of its first query
  const auto query_of = [&](int64_t r) { return a.first_query + (tile.row + r) / n; };
  if (n > 1 && a.visible->same_for_heads()) {
    for (int64_t r = 0; r < tile.count; ++r)
      if (r > 0 && (skipped + r) % n != 0)
        std::copy_n(mask.counts[r - 1], keys.end - keys.begin, mask.counts[r]);
      else
        a.visible->counts(0, {query_of(r), query_of(r) + 1}, keys, mask.counts[r], 0);
    return;
  }
  // the rows of a head are n apart
  for (int64_t h = 0; h < n; ++h) {
    const int64_t first = (h - skipped + n) % n;
    if (first >= tile.count) continue;
    const int64_t last = first + (tile.count - 1 - first) / n * n;
    a.visible->counts(tile.g * n + h, {query_of(first), query_of(last) + 1}, keys,
                      mask.counts[first], n * kMaxTileKeys);
  }
}

/// By a pattern.
inline void mask_by_pattern(const FlashAttention& a, const Tile& tile, TileMask& mask) {
  const int64_t n = a.H / a.G, last = std::min(a.S, tile.first + tile.keys),
                width = last - tile.first, key = a.first_key + tile.first;
  const int64_t from = a.first_query + tile.row / n,
                to = a.first_query + (tile.row + tile.count - 1) / n + 1;
  const bool same = a.visible->same_for_heads();
  if (same || n == 1) {
    const Seen seen = a.visible->tile(same ? 0 : tile.g, {from, to}, {key, a.first_key + last});
    if (seen != Seen::some) {
      mask.seen = seen == Seen::all && width < tile.keys ? Seen::some : seen;
      for (int64_t r = 0; r < tile.count; ++r) mask.row[r] = {0, seen == Seen::all ? width : 0};
      return;
    }
  }
  count_keys(a, tile, {key, a.first_key + last}, mask);
  bool all = true, any = false;
  for (int64_t r = 0; r < tile.count; ++r) {
    const int8_t* counts = mask.counts[r];
    Span span{0, width};
    while (!span.empty() && counts[span.begin] == 0) ++span.begin;
    while (!span.empty() && counts[span.end - 1] == 0) --span.end;
    mask.row[r] = span;
    if (!span.empty() && !mask.counted)
      mask.counted = std::memcmp(counts + span.begin, kOnce.data(),
                                 static_cast<size_t>(span.end - span.begin)) != 0;
    any |= !span.empty();
    all &= span.begin == 0 && span.end == tile.keys;
  }
  mask.seen = !any ? Seen::none : all && !mask.counted ? Seen::all : Seen::some;
}

inline void mask_tile(const FlashAttention& a, const Tile& tile, TileMask& mask) {
  mask.counted = false;
  if (a.visible != nullptr) return mask_by_pattern(a, tile, mask);
  const int64_t n = a.H / a.G, width = std::min(a.S - tile.first, tile.keys);
  const int64_t key = a.first_key + tile.first;  // where the tile begins
  // of the query whose own place in the tile is `at`
  const auto sees = [&](int64_t at) {
    Span span{0, width};
    if (a.documents != nullptr) {
      const KeyRange& document = a.documents[key + at - a.first_query];
      span = {std::max<int64_t>(0, document.begin - key), std::min(width, document.end - key)};
    }
    if (a.causal) span.end = std::min(span.end, at + 1);
    if (a.window > 0) span.begin = std::max(span.begin, at - a.window + 1);
    if (a.window > 0 && !a.causal) span.end = std::min(span.end, at + a.window);
    return span.empty() ? Span{0, 0} : span;
  };
  const int64_t first = a.first_query + tile.row / n - key,
                last = first + (tile.row % n + tile.count - 1) / n;
  // no query's span begins or ends before that of the query before it
  if (sees(first).end == tile.keys && sees(last).begin == 0 && !sees(last).empty()) {
    mask.seen = Seen::all;
    std::fill_n(mask.row, tile.count, Span{0, tile.keys});
    return;
  }
  bool any = false;
  for (int64_t r = 0, at = first, head = tile.row % n; r < tile.count; ++r) {
    mask.row[r] = sees(at);
    any |= !mask.row[r].empty();
    if (++head == n) head = 0, ++at;
  }
  mask.seen = any ? Seen::some : Seen::none;
}

/// What rows [begin, end) of the tile see, all taken together.
inline Span hull(const TileMask& mask, int64_t begin, int64_t end) {
  Span out{kMaxTileKeys, 0};
  for (int64_t r = begin; r < end; ++r)
    if (!mask.row[r].empty())
      out = {std::min(out.begin, mask.row[r].begin), std::max(out.end, mask.row[r].end)};
  return out.empty() ? Span{0, 0} : out;
}

/// Blocks of `keys` keys that some row of [row, row + count) of group g may see, ascending.
inline std::vector<int64_t> blocks_of_rows(
    const FlashAttention& a, int64_t g, int64_t row, int64_t count, int64_t keys) {
  const int64_t n = a.H / a.G;
  const int64_t from = a.first_query + row / n, to = a.first_query + (row + count - 1) / n + 1;
  std::vector<int64_t> out;
  const auto add = [&](int64_t begin, int64_t end) {
    begin = std::max<int64_t>(begin - a.first_key, 0), end = std::min(end - a.first_key, a.S);
    for (int64_t b = begin / keys; begin < end && b <= (end - 1) / keys; ++b) out.push_back(b);
  };
  if (a.visible == nullptr) {
    KeyRange all{a.first_key, a.first_key + a.S};
    if (a.documents != nullptr)
      all = {a.documents[from - a.first_query].begin, a.documents[to - 1 - a.first_query].end};
    if (a.window > 0) all.begin = std::max(all.begin, from - a.window + 1);
    if (a.causal) all.end = std::min(all.end, to);
    if (a.window > 0 && !a.causal) all.end = std::min(all.end, to - 1 + a.window);
    add(all.begin, all.end);
    return out;
  }
  for (int64_t h = 0; h < (a.visible->same_for_heads() ? 1 : n); ++h)
    for (const KeyRange& range : a.visible->ranges(g * n + h, from, to))
      add(range.begin, range.end);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

/// What is added to the scores, by distance, unclamped; with a margin of zeros on either side, for
/// whole vectors reach beyond what a row sees.
class BiasByDistance {
 public:
  explicit BiasByDistance(const FlashAttention& a) {
    if (a.bias == nullptr) return;
    const FlashShape shape(a);
    n_ = shape.n, t_ = a.T, stride_ = shape.distances + 2 * kMaxTileKeys;
    values_.resize(static_cast<size_t>(a.H * stride_));
    for (int64_t h = 0; h < a.H; ++h)
      for (int64_t d = 0; d < shape.distances; ++d) {
        const int64_t distance = d - (a.T - 1) + a.first_key - a.first_query;
        values_[static_cast<size_t>(h * stride_ + kMaxTileKeys + d)] =
            a.bias[h * a.bias_head_stride +
                   std::clamp<int64_t>(a.bias_zero + distance, 0, a.bias_size - 1)];
      }
  }
  /// Of row `number` of group g and the key numbers from `first` on, or null.
  const float* row(int64_t g, int64_t number, int64_t first) const {
    if (values_.empty()) return nullptr;
    return values_.data() + (g * n_ + number % n_) * stride_ + kMaxTileKeys + t_ - 1 + first -
           number / n_;
  }

 private:
  int64_t n_ = 0, t_ = 0, stride_ = 0;
  std::vector<float> values_;
};

/// ln of every multiplicity.
inline const float* flash_log_counts() {
  static const std::vector<float> table = [] {
    std::vector<float> t{kMinusInf};
    for (int64_t m = 1; m <= Visibility::kMostOften; ++m)
      t.push_back(static_cast<float>(std::log(static_cast<double>(m))));
    return t;
  }();
  return table.data();
}

/// Throws Error(internal) where sizes do not fit together.
void check_flash(const FlashAttention& attention);

}  // namespace tessera::kernels
