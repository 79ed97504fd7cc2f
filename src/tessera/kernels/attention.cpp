#include "tessera/kernels/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/attention.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/dot_inl.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

#ifndef TESSERA_KERNELS_ATTENTION_ONCE
#define TESSERA_KERNELS_ATTENTION_ONCE
namespace tessera::kernels {

constexpr int64_t kKeyBlock =
    256;                       // keys and values of 64 floats: 128 KiB, half a second-level cache
constexpr int kQueryRows = 6;  // query rows that share each load of a key or value
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Range {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
};
inline Range operator&(Range a, Range b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// Up to kQueryRows queries of one key-value head: row r of the tile is query (first + r) / n of
// head g n + (first + r) % n, where n = H / G heads share the key-value head.
struct QueryTile {
  int64_t g = 0;
  int64_t rows = 0;
  int64_t query[kQueryRows] = {};
  int64_t head[kQueryRows] = {};
  Range visible[kQueryRows] = {};  // absolute positions
  Range blocks{0, 0};              // key blocks that any row sees ...
  std::vector<int64_t> chosen;     // ... or, with a pattern, their list

  bool listed = false;
  int64_t block_count() const {
    return listed ? static_cast<int64_t>(chosen.size()) : blocks.end - blocks.begin;
  }
  int64_t block(int64_t i) const {
    return listed ? chosen[static_cast<size_t>(i)] : blocks.begin + i;
  }
};

inline Range visible_keys(const Attention& a, int64_t query) {
  const int64_t p = a.first_position + query;
  Range r{a.kv.first_position, a.kv.first_position + a.kv.count};
  if (a.causal) r.end = std::min(r.end, p + 1);
  if (a.window > 0) r.begin = std::max(r.begin, p - a.window + 1);
  if (a.window > 0 && !a.causal) r.end = std::min(r.end, p + a.window);
  return r;
}

// the blocks in which the pattern lets a row of the tile see something
inline void choose_blocks(const Attention& a, QueryTile& tile) {
  tile.listed = true;
  const int64_t end = a.kv.first_position + a.kv.count;
  const int64_t last = tile.rows - 1;
  const auto add = [&](int64_t head, int64_t from, int64_t to) {
    for (const KeyRange& range : a.visible->ranges(head, from, to)) {
      const Range keys = Range{range.begin, range.end} & Range{0, end};
      if (keys.empty()) continue;
      for (int64_t b = keys.begin / kKeyBlock; b <= (keys.end - 1) / kKeyBlock; ++b)
        tile.chosen.push_back(b);
    }
  };
  if (a.visible->same_for_heads()) {
    add(0, a.first_position + tile.query[0], a.first_position + tile.query[last] + 1);
  } else {
    for (int64_t r = 0; r < tile.rows; ++r)
      add(tile.head[r], a.first_position + tile.query[r], a.first_position + tile.query[r] + 1);
  }
  std::sort(tile.chosen.begin(), tile.chosen.end());
  tile.chosen.erase(std::unique(tile.chosen.begin(), tile.chosen.end()), tile.chosen.end());
}

inline int64_t tiles_per_group(const Attention& a) {
  return (a.T * (a.H / a.G) + kQueryRows - 1) / kQueryRows;
}

inline QueryTile make_tile(const Attention& a, int64_t g, int64_t number) {
  const int64_t n = a.H / a.G;
  const int64_t first = number * kQueryRows;
  QueryTile tile;
  tile.g = g;
  tile.rows = std::min<int64_t>(kQueryRows, a.T * n - first);
  Range all{std::numeric_limits<int64_t>::max(), 0};
  for (int64_t r = 0; r < tile.rows; ++r) {
    tile.query[r] = (first + r) / n;
    tile.head[r] = g * n + (first + r) % n;
    tile.visible[r] = visible_keys(a, tile.query[r]);
    if (tile.visible[r].empty()) continue;
    all = {std::min(all.begin, tile.visible[r].begin), std::max(all.end, tile.visible[r].end)};
  }
  if (a.visible != nullptr)
    choose_blocks(a, tile);
  else if (!all.empty())
    tile.blocks = {all.begin / kKeyBlock, (all.end - 1) / kKeyBlock + 1};
  return tile;
}

// What a block of keys gives a row, and what the blocks so far have given: the maximum logit, the
// sum of exp(logit - maximum), and the values weighted likewise, V floats from kValuesAt.
constexpr int64_t kMaximumAt = 0;
constexpr int64_t kSumAt = 1;
constexpr int64_t kValuesAt = 16;
inline int64_t partial_floats(const Attention& a) {
  return kValuesAt + (a.V + 15) / 16 * 16;
}

// body(slot, range): the parts of a range of positions that lie one after another in the cache
template <class Body>
inline void for_spans(const KeyValueView& kv, Range keys, const Body& body) {
  if (const Range lead = keys & Range{0, kv.lead}; !lead.empty()) body(lead.begin, lead);
  keys.begin = std::max(keys.begin, kv.first_position);
  const int64_t capacity = kv.capacity > 0 ? kv.capacity : std::max<int64_t>(1, kv.count);
  while (!keys.empty()) {
    const int64_t slot = (kv.first_slot + keys.begin - kv.first_position) % capacity;
    const Range span{keys.begin, std::min(keys.end, keys.begin + capacity - slot)};
    body(kv.lead + slot, span);
    keys.begin = span.end;
  }
}

}  // namespace tessera::kernels
#endif  // TESSERA_KERNELS_ATTENTION_ONCE

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kScoreStride = kKeyBlock + 16;

// --- scores --------------------------------------------------------------------------------------

HWY_INLINE void query_key_products(const Attention& a,
                                   const QueryTile& tile,
                                   const float* q,
                                   Range keys,
                                   int64_t block_begin,
                                   float* scores) {
  for_spans(a.kv, keys, [&](int64_t slot, Range span) HWY_ATTR {
    const RowsView k{a.kv.k + slot * a.kv.k_token_stride + tile.g * a.kv.k_head_stride,
                     a.kv.k_token_stride, 0};
    // four keys at a time, for all query rows while they are in the first cache level
    for (int64_t j = 0; j < span.end - span.begin; j += 4) {
      const RowsView quad{k.data + j * k.stride, k.stride,
                          std::min<int64_t>(4, span.end - span.begin - j)};
      float* s = scores + span.begin + j - block_begin;
      int64_t r = 0;
      for (; r + kTileRows <= tile.rows; r += kTileRows)
        dot_products<kTileRows>(q + r * a.K, a.K, quad, a.K, s + r * kScoreStride, kScoreStride);
      for (; r + 2 <= tile.rows; r += 2)
        dot_products<2>(q + r * a.K, a.K, quad, a.K, s + r * kScoreStride, kScoreStride);
      for (; r < tile.rows; ++r)
        dot_products<1>(q + r * a.K, a.K, quad, a.K, s + r * kScoreStride, kScoreStride);
    }
  });
}

struct SoftmaxPart {
  float maximum, sum;
};

// products -> exp(logit - maximum), in place; bias: null or that of the first of the n keys
HWY_INLINE SoftmaxPart exponentials(const Attention& a, const float* bias, int64_t n, float* s) {
  V32 max = all(kMinusInfinity);
  for (int64_t j = 0; j < n; j += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, n - j);
    V32 v = hn::Mul(load_upto(s + j, count), all(a.scale));
    if (a.softcap > 0)
      v = hn::Mul(activate<Activation::tanh>(hn::Div(v, all(a.softcap))), all(a.softcap));
    if (bias) v = hn::Add(v, load_upto(bias + j, count));
    store_upto(v, s + j, count);
    if (count < kLanes)
      v = hn::IfThenElse(hn::FirstN(F32(), static_cast<size_t>(count)), v, all(kMinusInfinity));
    // a NaN counts as infinite, so that it reaches the result instead of getting lost in Max
    max = hn::Max(max, hn::IfThenElse(hn::Eq(v, v), v, all(-kMinusInfinity)));
  }
  const float maximum = hn::GetLane(hn::MaxOfLanes(F32(), max));
  if (maximum == kMinusInfinity) return {maximum, 0};
  V32 sum = zero();
  for (int64_t j = 0; j < n; j += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, n - j);
    V32 e = exp_negative(hn::Sub(load_upto(s + j, count), all(maximum)));
    if (count < kLanes) e = hn::IfThenElseZero(hn::FirstN(F32(), static_cast<size_t>(count)), e);
    store_upto(e, s + j, count);
    sum = hn::Add(sum, e);
  }
  return {maximum, sum_of(sum)};
}

// --- weighted values -----------------------------------------------------------------------------

// out[r][c ...] += sum over n keys of p[r][j] v[j][c ...], `vectors` vectors wide, keys ascending
template <int rows, int vectors, class Read, class Write>
HWY_INLINE void values_tile(const float* p,
                            const float* v,
                            int64_t v_stride,
                            int64_t n,
                            float* out,
                            int64_t out_stride,
                            const Read& read,
                            const Write& write) {
  V32 sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c) sum[r][c] = read(out + r * out_stride + c * kLanes);
  for (int64_t j = 0; j < n; ++j) {
    V32 vs[vectors];
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c) vs[c] = read(v + j * v_stride + c * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const V32 weight = all(p[r * kScoreStride + j]);
#pragma GCC unroll 8
      for (int c = 0; c < vectors; ++c) sum[r][c] = hn::MulAdd(weight, vs[c], sum[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c) write(sum[r][c], out + r * out_stride + c * kLanes);
}

template <int rows>
HWY_INLINE void values_rows(const float* p,
                            const float* v,
                            int64_t v_stride,
                            int64_t n,
                            float* out,
                            int64_t out_stride,
                            int64_t width) {
  constexpr int kVectors = rows == 1 ? 8 : rows <= 3 ? 4 : 2;  // at most 12 accumulators
  const auto read = [](const float* q) HWY_ATTR { return load(q); };
  const auto write = [](V32 x, float* q) HWY_ATTR { store(x, q); };
  int64_t c = 0;
  for (; c + kVectors * kLanes <= width; c += kVectors * kLanes)
    values_tile<rows, kVectors>(p, v + c, v_stride, n, out + c, out_stride, read, write);
  for (; c + kLanes <= width; c += kLanes)
    values_tile<rows, 1>(p, v + c, v_stride, n, out + c, out_stride, read, write);
  if (c < width)
    values_tile<rows, 1>(
        p, v + c, v_stride, n, out + c, out_stride,
        [&](const float* q) HWY_ATTR { return load_part(q, width - c); },
        [&](V32 x, float* q) HWY_ATTR { store_part(x, q, width - c); });
}

// rows row .. row + count of the tile, all of which see the keys
HWY_INLINE void add_values(const Attention& a,
                           const QueryTile& tile,
                           int64_t row,
                           int64_t count,
                           Range keys,
                           int64_t block_begin,
                           const float* scores,
                           float* partials) {
  const int64_t stride = partial_floats(a);
  for_spans(a.kv, keys, [&](int64_t slot, Range span) HWY_ATTR {
    const float* v = a.kv.v + slot * a.kv.v_token_stride + tile.g * a.kv.v_head_stride;
    const float* p = scores + row * kScoreStride + span.begin - block_begin;
    float* out = partials + row * stride + kValuesAt;
    const int64_t n = span.end - span.begin;
    const int64_t v_stride = a.kv.v_token_stride;
    switch (count) {
      case 1:
        return values_rows<1>(p, v, v_stride, n, out, stride, a.V);
      case 2:
        return values_rows<2>(p, v, v_stride, n, out, stride, a.V);
      case 3:
        return values_rows<3>(p, v, v_stride, n, out, stride, a.V);
      case 4:
        return values_rows<4>(p, v, v_stride, n, out, stride, a.V);
      case 5:
        return values_rows<5>(p, v, v_stride, n, out, stride, a.V);
      default:
        return values_rows<6>(p, v, v_stride, n, out, stride, a.V);
    }
  });
}

// --- blocks --------------------------------------------------------------------------------------

// the queries of a tile, one after another, and then those for far keys
HWY_INLINE const float* gather_queries(const Attention& a, const QueryTile& tile) {
  float* q = scratch<2>(2 * kQueryRows * a.K);
  const auto gather = [&](const float* from, float* to) HWY_ATTR {
    for (int64_t r = 0; r < tile.rows; ++r)
      std::memcpy(to + r * a.K,
                  from + tile.query[r] * a.q_token_stride + tile.head[r] * a.q_head_stride,
                  static_cast<size_t>(a.K) * sizeof(float));
  };
  gather(a.q, q);
  if (a.far_q != nullptr) gather(a.far_q, q + kQueryRows * a.K);
  return q;
}

// log of a multiplicity
inline const float* log_counts() {
  static const std::vector<float> table = [] {
    std::vector<float> t{kMinusInfinity};
    for (int64_t m = 1; m <= Visibility::kMostOften; ++m)
      t.push_back(static_cast<float>(std::log(static_cast<double>(m))));
    return t;
  }();
  return table.data();
}

// What the pattern and the caller add to the scores of a block, per row; null = nothing.
struct PatternBias {
  Range seen{0, 0};                   // holds every key that some row sees
  const float* row[kQueryRows] = {};  // of the keys from the block's begin
};

inline Seen seen_by_tile(const Attention& a, const QueryTile& tile, KeyRange keys) {
  const auto ask = [&](int64_t head, int64_t from, int64_t to) {
    return a.visible->tile(head, {a.first_position + from, a.first_position + to}, keys);
  };
  if (a.visible->same_for_heads()) return ask(0, tile.query[0], tile.query[tile.rows - 1] + 1);
  const Seen first = ask(tile.head[0], tile.query[0], tile.query[0] + 1);
  for (int64_t r = 1; r < tile.rows; ++r)
    if (ask(tile.head[r], tile.query[r], tile.query[r] + 1) != first) return Seen::some;
  return first;
}

inline PatternBias pattern_bias(const Attention& a, const QueryTile& tile, Range here) {
  PatternBias out;
  const Seen seen = seen_by_tile(a, tile, {here.begin, here.end});
  if (seen == Seen::none) return out;
  if (seen == Seen::all && a.bias == nullptr) {
    out.seen = here;
    return out;
  }
  float* bias = scratch<6>(kQueryRows * kKeyBlock);
  const float* logs = log_counts();
  const int64_t n = here.end - here.begin;
  Range hull{n, 0};
  for (int64_t r = 0; r < tile.rows; ++r) {
    const bool as_before = r > 0 && tile.query[r] == tile.query[r - 1] &&
                           a.visible->same_for_heads() && a.bias == nullptr;
    if (as_before) {
      out.row[r] = out.row[r - 1];
      continue;
    }
    int8_t counts[kKeyBlock];
    a.visible->counts(tile.head[r], a.first_position + tile.query[r], here.begin, here.end, counts);
    float* row = bias + r * kKeyBlock;
    for (int64_t j = 0; j < n; ++j) row[j] = logs[static_cast<uint8_t>(counts[j])];
    int64_t begin = 0, end = n;
    while (begin < end && counts[begin] == 0) ++begin;
    while (end > begin && counts[end - 1] == 0) --end;
    if (begin < end) hull = {std::min(hull.begin, begin), std::max(hull.end, end)};
    if (a.bias != nullptr) {
      const float* added = a.bias + tile.head[r] * a.bias_head_stride +
                           tile.query[r] * a.bias_query_stride - a.kv.first_position;
      for (int64_t j = begin; j < end; ++j)
        if (counts[j] != 0) row[j] += added[here.begin + j];
    }
    out.row[r] = row;
  }
  // whole vectors counted from the block's begin: a sum's lanes depend on positions alone
  if (!hull.empty()) out.seen = {here.begin + hull.begin / kLanes * kLanes, here.begin + hull.end};
  return out;
}

// The part of a block for every row of the tile where a pattern says who sees whom. All rows run
// over the same keys; hidden ones weigh 0.
HWY_INLINE void pattern_partials(
    const Attention& a, const QueryTile& tile, const float* q, int64_t block, float* partials) {
  float* scores = scratch<3>(kQueryRows * kScoreStride);
  const int64_t stride = partial_floats(a), block_begin = block * kKeyBlock;
  const Range here{block_begin,
                   std::min(block_begin + kKeyBlock, a.kv.first_position + a.kv.count)};
  const PatternBias bias = pattern_bias(a, tile, here);
  const Range seen = bias.seen;
  // keys between the lead and the first one are not there: hidden, but the sums run over them
  const bool gap = seen.begin < a.kv.first_position && seen.end > a.kv.lead;
  if (!seen.empty()) {
    if (gap)
      for (int64_t r = 0; r < tile.rows; ++r)
        std::memset(scores + r * kScoreStride + seen.begin - block_begin, 0,
                    static_cast<size_t>(seen.end - seen.begin) * sizeof(float));
    const Range far = seen & Range{0, a.far_q != nullptr ? a.far_end : 0};
    if (!far.empty()) query_key_products(a, tile, q + kQueryRows * a.K, far, block_begin, scores);
    const Range near{far.empty() ? seen.begin : far.end, seen.end};
    if (!near.empty()) query_key_products(a, tile, q, near, block_begin, scores);
  }
  bool any_void = false;
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* partial = partials + r * stride;
    std::memset(partial, 0, static_cast<size_t>(stride) * sizeof(float));
    SoftmaxPart part{kMinusInfinity, 0};
    const int64_t from = seen.begin - block_begin;
    if (!seen.empty())
      part = exponentials(a, bias.row[r] != nullptr ? bias.row[r] + from : nullptr,
                          seen.end - seen.begin, scores + r * kScoreStride + from);
    partial[kMaximumAt] = part.maximum;
    partial[kSumAt] = part.sum;
    any_void |= part.maximum == kMinusInfinity;
  }
  if (seen.empty()) return;
  if (!any_void) return add_values(a, tile, 0, tile.rows, seen, block_begin, scores, partials);
  for (int64_t r = 0; r < tile.rows; ++r)
    if (partials[r * stride + kMaximumAt] != kMinusInfinity)
      add_values(a, tile, r, 1, seen, block_begin, scores, partials);
}

// one block's part for every row of the tile
HWY_INLINE void block_partials(
    const Attention& a, const QueryTile& tile, const float* q, int64_t block, float* partials) {
  if (a.visible != nullptr) return pattern_partials(a, tile, q, block, partials);
  float* scores = scratch<3>(kQueryRows * kScoreStride);
  const Range here{block * kKeyBlock, (block + 1) * kKeyBlock};
  Range some{here.end, here.begin};  // seen by at least one row
  Range common = here;               // seen by all
  for (int64_t r = 0; r < tile.rows; ++r) {
    const Range seen = tile.visible[r] & here;
    common = common & seen;
    if (!seen.empty()) some = {std::min(some.begin, seen.begin), std::max(some.end, seen.end)};
  }
  if (some.empty()) some = {here.begin, here.begin};
  query_key_products(a, tile, q, some, here.begin, scores);

  const int64_t stride = partial_floats(a);
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* partial = partials + r * stride;
    std::memset(partial, 0, static_cast<size_t>(stride) * sizeof(float));
    const Range seen = tile.visible[r] & here;
    SoftmaxPart part{kMinusInfinity, 0};
    if (!seen.empty()) {
      const float* bias = a.bias ? a.bias + tile.head[r] * a.bias_head_stride +
                                       tile.query[r] * a.bias_query_stride +
                                       (seen.begin - a.kv.first_position)
                                 : nullptr;
      part = exponentials(a, bias, seen.end - seen.begin,
                          scores + r * kScoreStride + seen.begin - here.begin);
    }
    partial[kMaximumAt] = part.maximum;
    partial[kSumAt] = part.sum;
  }

  // each row's keys in ascending order: its own ones before the common ones, the common, its own
  // after
  if (common.empty()) common = {here.end, here.end};
  const auto own = [&](int64_t r, Range keys) HWY_ATTR {
    keys = keys & tile.visible[r] & here;
    if (!keys.empty() && partials[r * stride + kMaximumAt] != kMinusInfinity)
      add_values(a, tile, r, 1, keys, here.begin, scores, partials);
  };
  for (int64_t r = 0; r < tile.rows; ++r) own(r, {here.begin, common.begin});
  bool any_void = false;
  for (int64_t r = 0; r < tile.rows; ++r)
    any_void |= partials[r * stride + kMaximumAt] == kMinusInfinity;
  if (any_void) {
    for (int64_t r = 0; r < tile.rows; ++r) own(r, common);
  } else if (!common.empty()) {
    add_values(a, tile, 0, tile.rows, common, here.begin, scores, partials);
  }
  for (int64_t r = 0; r < tile.rows; ++r) own(r, {common.end, here.end});
}

// total = total + partial, both brought to the larger maximum
HWY_INLINE void merge(const Attention& a, const float* partial, float* total) {
  const float before = total[kMaximumAt];
  const float here = partial[kMaximumAt];
  if (here == kMinusInfinity) return;
  const float maximum = std::max(before, here);
  const V32 keep = exp_negative(all(before - maximum));
  const V32 gain = exp_negative(all(here - maximum));
  total[kMaximumAt] = maximum;
  total[kSumAt] =
      hn::GetLane(hn::Add(hn::Mul(all(total[kSumAt]), keep), hn::Mul(all(partial[kSumAt]), gain)));
  // the buffers are padded to whole vectors
  for (int64_t c = 0; c < a.V; c += kLanes) {
    const V32 old = hn::Mul(load(total + kValuesAt + c), keep);
    store(hn::MulAdd(load(partial + kValuesAt + c), gain, old), total + kValuesAt + c);
  }
}

// the state before any key: the sink, if there is one
HWY_INLINE void start_total(const Attention& a, int64_t head, float* total) {
  std::memset(total, 0, static_cast<size_t>(partial_floats(a)) * sizeof(float));
  const float sink = a.sinks ? a.sinks[head] : kMinusInfinity;
  total[kMaximumAt] = sink;
  total[kSumAt] = sink == kMinusInfinity ? 0.0f : 1.0f;
}

HWY_INLINE void finish(const Attention& a, const QueryTile& tile, int64_t r, const float* total) {
  float* out = a.out + tile.query[r] * a.out_token_stride + tile.head[r] * a.out_head_stride;
  const float sum = total[kSumAt];
  for (int64_t c = 0; c < a.V; c += kLanes) {
    const V32 o = sum == 0.0f ? zero() : hn::Div(load(total + kValuesAt + c), all(sum));
    store_upto(o, out + c, std::min<int64_t>(kLanes, a.V - c));
  }
}

void attend_tile(const Attention& a, const QueryTile& tile) {
  const int64_t stride = partial_floats(a);
  float* totals = scratch<4>(2 * kQueryRows * stride);
  float* partials = totals + kQueryRows * stride;
  const float* q = gather_queries(a, tile);
  for (int64_t r = 0; r < tile.rows; ++r) start_total(a, tile.head[r], totals + r * stride);
  for (int64_t b = 0; b < tile.block_count(); ++b) {
    block_partials(a, tile, q, tile.block(b), partials);
    for (int64_t r = 0; r < tile.rows; ++r) merge(a, partials + r * stride, totals + r * stride);
  }
  for (int64_t r = 0; r < tile.rows; ++r) finish(a, tile, r, totals + r * stride);
}

// The same in two steps, for few queries and many keys: blocks on all threads, then the merge.
void attend_block(const Attention& a, const QueryTile& tile, int64_t block, float* partials) {
  block_partials(a, tile, gather_queries(a, tile), block, partials);
}

void attend_merge(const Attention& a, const QueryTile& tile, const float* partials) {
  const int64_t stride = partial_floats(a);
  float* total = scratch<4>(stride);
  for (int64_t r = 0; r < tile.rows; ++r) {
    start_total(a, tile.head[r], total);
    for (int64_t b = 0; b < tile.block_count(); ++b)
      merge(a, partials + (b * kQueryRows + r) * stride, total);
    finish(a, tile, r, total);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(attend_tile);
HWY_EXPORT(attend_block);
HWY_EXPORT(attend_merge);

namespace {

// Tiles in an order that gives equal contiguous shares equal work under a causal mask: first, last,
// second, last but one ...
int64_t balanced(int64_t i, int64_t n) {
  return i % 2 == 0 ? i / 2 : n - 1 - i / 2;
}

void attend_by_tiles(const Attention& a) {
  const int64_t tiles = tiles_per_group(a);
  parallel_for(a.G * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      HWY_DYNAMIC_DISPATCH(attend_tile)(a, make_tile(a, i / tiles, balanced(i % tiles, tiles)));
  });
}

void attend_by_blocks(const Attention& a) {
  struct Item {
    int64_t tile, block, partial;
  };
  std::vector<QueryTile> tiles;
  std::vector<Item> items;
  std::vector<int64_t> first_partial;
  for (int64_t i = 0; i < a.G * tiles_per_group(a); ++i) {
    tiles.push_back(make_tile(a, i / tiles_per_group(a), i % tiles_per_group(a)));
    first_partial.push_back(static_cast<int64_t>(items.size()));
    for (int64_t b = 0; b < tiles.back().block_count(); ++b)
      items.push_back({i, tiles.back().block(b), static_cast<int64_t>(items.size())});
  }
  const int64_t size = kQueryRows * partial_floats(a);
  float* partials = scratch<5>(static_cast<int64_t>(items.size()) * size);
  parallel_for(static_cast<int64_t>(items.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Item& item = items[static_cast<size_t>(i)];
      HWY_DYNAMIC_DISPATCH(attend_block)
      (a, tiles[static_cast<size_t>(item.tile)], item.block, partials + item.partial * size);
    }
  });
  for (size_t i = 0; i < tiles.size(); ++i)
    HWY_DYNAMIC_DISPATCH(attend_merge)(a, tiles[i], partials + first_partial[i] * size);
}

}  // namespace

void attend(const Attention& a) {
  require(a.G > 0 && a.H > 0 && a.H % a.G == 0, "attention",
          "{} key-value heads do not divide {} heads", a.G, a.H);
  require(a.T >= 0 && a.K > 0 && a.V > 0 && a.kv.count >= 0 && a.kv.first_position >= 0 &&
              a.first_position >= 0 && a.window >= 0 && a.kv.first_slot >= 0 && a.kv.lead >= 0 &&
              a.kv.lead <= a.kv.first_position && (a.kv.lead == 0 || a.bias == nullptr) &&
              (a.kv.lead == 0 || a.visible != nullptr) &&
              (a.far_q == nullptr || a.visible != nullptr) &&
              (a.kv.capacity == 0 || a.kv.capacity >= a.kv.count),
          "attention",
          "T = {}, K = {}, V = {}, {} keys from position {} in {} slots, queries from {}", a.T, a.K,
          a.V, a.kv.count, a.kv.first_position, a.kv.capacity, a.first_position);
  cap_targets();
  // With few tiles the threads share out the blocks of keys instead; the numbers are the same.
  const int64_t tiles = a.G * tiles_per_group(a);
  const bool few = tiles < 4 * thread_count() && a.kv.count >= 2 * kKeyBlock && thread_count() > 1;
  if (few)
    attend_by_blocks(a);
  else
    attend_by_tiles(a);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
