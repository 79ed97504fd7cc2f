#include "tessera/kernels/flash_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/flash_attention.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

#ifndef TESSERA_KERNELS_FLASH_ATTENTION_ONCE
#define TESSERA_KERNELS_FLASH_ATTENTION_ONCE
namespace tessera::kernels {

// Rows of a tile are pairs of a query and a head of one key-value group: row r of the group is
// query r / n, head r % n, n = H / G. So the heads of a group share each load of a key.
constexpr int64_t kForwardRows = 48;   // scores of a tile: 21 KiB, in the first cache level
constexpr int64_t kBackwardRows = 96;  // deeper products for dK and dV
constexpr int64_t kTileKeys = 96;      // a multiple of every panel width and of every row group
constexpr int64_t kPadding = 16;  // floats between rows: an odd number of cache lines, so that a
                                  // column of them does not fall into a few cache sets
constexpr int64_t kTileStride = kTileKeys + kPadding;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

inline int64_t round_up(int64_t n, int64_t step) {
  return (n + step - 1) / step * step;
}

struct Span {
  int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};

struct FlashShape {
  int64_t n;          // heads of a group
  int64_t rows;       // T n
  int64_t blocks;     // of keys
  int64_t distances;  // T + S - 1
  explicit FlashShape(const FlashAttention& a)
      : n(a.H / a.G),
        rows(a.T * n),
        blocks((a.S + kTileKeys - 1) / kTileKeys),
        distances(a.T + a.S - 1) {}
};

// Which keys of a block each row of a tile sees, by their number in the block.
struct TileMask {
  Seen seen = Seen::none;
  Span row[kBackwardRows];
  bool counted = false;  // multiplicities other than 1 inside the spans
  int8_t counts[kBackwardRows][kTileKeys];
};

// rows [row, row + count) of group g against the keys of a block
inline void mask_tile(
    const FlashAttention& a, int64_t g, int64_t row, int64_t count, int64_t block, TileMask& mask) {
  const int64_t n = a.H / a.G, begin = block * kTileKeys, end = std::min(a.S, begin + kTileKeys);
  const int64_t width = end - begin, key = a.first_key + begin;
  mask.counted = false;
  bool all = true, any = false;
  if (a.visible != nullptr) {
    const int64_t from = a.first_query + row / n, to = a.first_query + (row + count - 1) / n + 1;
    const bool same = a.visible->same_for_heads();
    if (same || n == 1) {
      const Seen seen = a.visible->tile(same ? 0 : g, {from, to}, {key, a.first_key + end});
      if (seen != Seen::some) {
        mask.seen = seen == Seen::all && width < kTileKeys ? Seen::some : seen;
        for (int64_t r = 0; r < count; ++r) mask.row[r] = {0, seen == Seen::all ? width : 0};
        return;
      }
    }
    for (int64_t r = 0; r < count; ++r) {
      int8_t* counts = mask.counts[r];
      const int64_t query = a.first_query + (row + r) / n;
      if (same && r > 0 && (row + r) % n != 0)
        std::copy_n(mask.counts[r - 1], width, counts);
      else
        a.visible->counts(same ? 0 : g * n + (row + r) % n, query, key, a.first_key + end, counts);
      Span span{0, width};
      while (!span.empty() && counts[span.begin] == 0) ++span.begin;
      while (!span.empty() && counts[span.end - 1] == 0) --span.end;
      mask.row[r] = span;
      for (int64_t j = span.begin; j < span.end; ++j) mask.counted |= counts[j] != 1;
      any |= !span.empty();
      all &= span.begin == 0 && span.end == kTileKeys;
    }
    mask.seen = !any ? Seen::none : all && !mask.counted ? Seen::all : Seen::some;
    return;
  }
  for (int64_t r = 0; r < count; ++r) {
    const int64_t at = a.first_query + (row + r) / n - key;  // the query's own place in the block
    Span span{0, width};
    if (a.causal) span.end = std::min(span.end, at + 1);
    if (a.window > 0) span.begin = std::max(span.begin, at - a.window + 1);
    if (a.window > 0 && !a.causal) span.end = std::min(span.end, at + a.window);
    if (span.empty()) span = {0, 0};
    mask.row[r] = span;
    any |= !span.empty();
    all &= span.begin == 0 && span.end == kTileKeys;
  }
  mask.seen = !any ? Seen::none : all ? Seen::all : Seen::some;
}

inline Span hull(const TileMask& mask, int64_t begin, int64_t end) {
  Span out{kTileKeys, 0};
  for (int64_t r = begin; r < end; ++r)
    if (!mask.row[r].empty())
      out = {std::min(out.begin, mask.row[r].begin), std::max(out.end, mask.row[r].end)};
  return out.empty() ? Span{0, 0} : out;
}

// blocks of keys that some row of [row, row + count) may see, ascending
inline std::vector<int64_t> blocks_of_rows(const FlashAttention& a,
                                           int64_t g,
                                           int64_t row,
                                           int64_t count) {
  const int64_t n = a.H / a.G;
  const int64_t from = a.first_query + row / n, to = a.first_query + (row + count - 1) / n + 1;
  std::vector<int64_t> out;
  const auto add = [&](int64_t begin, int64_t end) {
    begin = std::max<int64_t>(begin - a.first_key, 0), end = std::min(end - a.first_key, a.S);
    for (int64_t b = begin / kTileKeys; begin < end && b <= (end - 1) / kTileKeys; ++b)
      out.push_back(b);
  };
  if (a.visible == nullptr) {
    const int64_t last = a.first_key + a.S;
    add(a.window > 0 ? from - a.window + 1 : a.first_key, a.causal ? to
                                                          : a.window > 0
                                                              ? std::min(last, to - 1 + a.window)
                                                              : last);
    return out;
  }
  for (int64_t h = 0; h < (a.visible->same_for_heads() ? 1 : n); ++h)
    for (const KeyRange& range : a.visible->ranges(g * n + h, from, to))
      add(range.begin, range.end);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// The bias of a head by distance, unclamped: entry d + T - 1 + (first_query - first_key offset) is
// that of key number - query number = d.
inline std::vector<float> bias_by_distance(const FlashAttention& a) {
  if (a.bias == nullptr) return {};
  const FlashShape shape(a);
  std::vector<float> out(static_cast<size_t>(a.H * shape.distances));
  for (int64_t h = 0; h < a.H; ++h)
    for (int64_t d = 0; d < shape.distances; ++d) {
      const int64_t distance = d - (a.T - 1) + a.first_key - a.first_query;
      out[static_cast<size_t>(h * shape.distances + d)] =
          a.bias[h * a.bias_head_stride +
                 std::clamp<int64_t>(a.bias_zero + distance, 0, a.bias_size - 1)];
    }
  return out;
}

// log of a multiplicity
inline const float* flash_log_counts() {
  static const std::vector<float> table = [] {
    std::vector<float> t{kMinusInf};
    for (int64_t m = 1; m <= Visibility::kMostOften; ++m)
      t.push_back(static_cast<float>(std::log(static_cast<double>(m))));
    return t;
  }();
  return table.data();
}

// What an item of parallel work gets besides the attention.
struct FlashForwardItem {
  int64_t b, g, tile;
  const float* kt;      // of (b, g): panels of transposed keys
  const float* values;  // of (b, g): panels of values
  const float* bias;    // by distance, or null
  MutableHeads out;
  float* lse;
};

struct FlashBackwardItem {
  int64_t b, g;
  int64_t part, parts;  // this item takes key blocks part, part + parts, ...
  const float* bias;
  const FlashGradients* gradients;
  float* dq;      // [rows, K] of this part, or null: straight to the gradient
  float* d_bias;  // [n, distances], or null
};

}  // namespace tessera::kernels
#endif  // TESSERA_KERNELS_FLASH_ATTENTION_ONCE

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// Register tile of all products: kGroup rows of two vectors; 12 accumulators of 16 registers, or 24
// of 32.
#if HWY_MAX_BYTES == 64
constexpr int kGroup = 12;
#else
constexpr int kGroup = 6;
#endif
constexpr int64_t kPanel = 2 * kLanes;
static_assert(kTileKeys % kPanel == 0 && kTileKeys % kGroup == 0);
static_assert(kForwardRows % kGroup == 0 && kBackwardRows % kGroup == 0);

// c[r][0 .. kPanel) (+)= sum_d a[r * a_row + d * a_depth] b[d * b_depth ...]
template <bool add>
HWY_INLINE void product(const float* HWY_RESTRICT a,
                        int64_t a_row,
                        int64_t a_depth,
                        const float* HWY_RESTRICT b,
                        int64_t b_depth,
                        int64_t depth,
                        float* HWY_RESTRICT c,
                        int64_t c_row) {
  V32 low[kGroup], high[kGroup];
#pragma GCC unroll 12
  for (int r = 0; r < kGroup; ++r) {
    low[r] = add ? load(c + r * c_row) : zero();
    high[r] = add ? load(c + r * c_row + kLanes) : zero();
  }
  for (int64_t d = 0; d < depth; ++d) {
    const V32 b0 = load(b), b1 = load(b + kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kGroup; ++r) {
      const V32 x = all(a[r * a_row]);
      low[r] = hn::MulAdd(x, b0, low[r]);
      high[r] = hn::MulAdd(x, b1, high[r]);
    }
    a += a_depth;
    b += b_depth;
  }
#pragma GCC unroll 12
  for (int r = 0; r < kGroup; ++r) {
    store(low[r], c + r * c_row);
    store(high[r], c + r * c_row + kLanes);
  }
}

// e^x for x <= 0; 0 below -87, NaN stays. x = n ln 2 + r, |r| <= ln 2 / 2, and the Taylor series of
// e^r to r^6 / 720: relative error below 2e-7. Adding 1.5 * 2^23 rounds to an integer, which then
// lies in the low bits.
HWY_INLINE V32 exp_of_score(V32 x) {
  const V32 magic = all(12582912.0f);
  const V32 shifted = hn::MulAdd(x, all(1.44269504f), magic);
  const V32 n = hn::Sub(shifted, magic);
  V32 r = hn::NegMulAdd(n, all(0.693359375f), x);
  r = hn::NegMulAdd(n, all(-2.12194440e-4f), r);
  V32 p = all(1.0f / 720);
  p = hn::MulAdd(p, r, all(1.0f / 120));
  p = hn::MulAdd(p, r, all(1.0f / 24));
  p = hn::MulAdd(p, r, all(1.0f / 6));
  p = hn::MulAdd(p, r, all(0.5f));
  p = hn::MulAdd(p, r, all(1.0f));
  p = hn::MulAdd(p, r, all(1.0f));
  const auto exponent =
      hn::Add(hn::ShiftLeft<23>(hn::BitCast(I32(), shifted)), hn::BitCast(I32(), all(1.0f)));
  const V32 e = hn::Mul(p, hn::BitCast(F32(), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, all(-87.0f)), e);
}

// --- packing -------------------------------------------------------------------------------------

// panels of kPanel tokens, transposed: to[(t / kPanel) * width * kPanel + c * kPanel + t % kPanel]
HWY_INLINE void pack_transposed(
    const float* from, int64_t token, int64_t tokens, int64_t width, float* to) {
  for (int64_t t = 0; t < tokens; t += kPanel) {
    const int64_t n = std::min(kPanel, tokens - t);
    for (int64_t i = 0; i < n; ++i) {
      const float* row = from + (t + i) * token;
      for (int64_t c = 0; c < width; ++c) to[c * kPanel + i] = row[c];
    }
    for (int64_t i = n; i < kPanel; ++i)
      for (int64_t c = 0; c < width; ++c) to[c * kPanel + i] = 0;
    to += width * kPanel;
  }
}

// panels of kPanel columns: to[(c / kPanel) * tokens * kPanel + t * kPanel + c % kPanel]
HWY_INLINE void pack_columns(
    const float* from, int64_t token, int64_t tokens, int64_t width, float* to) {
  for (int64_t c = 0; c < width; c += kPanel) {
    const int64_t n = std::min(kPanel, width - c);
    for (int64_t t = 0; t < tokens; ++t) {
      std::copy_n(from + t * token + c, n, to);
      std::fill(to + n, to + kPanel, 0.0f);
      to += kPanel;
    }
  }
}

HWY_INLINE int64_t transposed_floats(int64_t tokens, int64_t width) {
  return round_up(tokens, kPanel) * width;
}
HWY_INLINE int64_t column_floats(int64_t tokens, int64_t width) {
  return round_up(width, kPanel) * tokens;
}
HWY_INLINE int64_t row_stride(int64_t width) {
  return round_up(width, kPanel) + kPadding;
}

// Rows of a group of heads, times `factor`, kGroup at a time: to[(r / kGroup) * width * kGroup +
// c * kGroup + r % kGroup]. The last ones of a group are zeros.
HWY_INLINE void pack_groups(const ConstHeads& from,
                            int64_t b,
                            int64_t g,
                            int64_t n,
                            Span rows,
                            int64_t width,
                            float factor,
                            float* to) {
  for (int64_t first = rows.begin; first < rows.end; first += kGroup, to += width * kGroup)
    for (int64_t i = 0; i < kGroup; ++i) {
      const int64_t r = first + i;
      if (r >= rows.end) {
        for (int64_t c = 0; c < width; ++c) to[c * kGroup + i] = 0;
        continue;
      }
      const float* x = from.row(b, r / n, g * n + r % n);
      for (int64_t c = 0; c < width; ++c) to[c * kGroup + i] = x[c] * factor;
    }
}

// The same rows in panels of kPanel columns, a tile of `tile` rows after another:
// to[(c / kPanel) * tile * kPanel + r * kPanel + c % kPanel]. The last tile is filled with zeros.
HWY_INLINE void pack_row_panels(const ConstHeads& from,
                                int64_t b,
                                int64_t g,
                                int64_t n,
                                Span rows,
                                int64_t tile,
                                int64_t width,
                                float factor,
                                float* to) {
  for (int64_t first = rows.begin; first < rows.end; first += tile)
    for (int64_t c = 0; c < width; c += kPanel) {
      const int64_t columns = std::min(kPanel, width - c);
      for (int64_t r = first; r < first + tile; ++r, to += kPanel) {
        int64_t e = 0;
        if (r < rows.end) {
          const float* x = from.row(b, r / n, g * n + r % n) + c;
          for (; e < columns; ++e) to[e] = x[e] * factor;
        }
        for (; e < kPanel; ++e) to[e] = 0;
      }
    }
}

// --- scores --------------------------------------------------------------------------------------

// scores[r][j] = q[r] . k[j] for the keys that the row's group of rows sees, whole panels; q from
// pack_groups
HWY_INLINE void tile_scores(const float* q,
                            int64_t width,
                            const float* kt,
                            int64_t block,
                            const TileMask& mask,
                            int64_t rows,
                            float* scores) {
  const float* panels = kt + block * kTileKeys * width;
  Span seen[kBackwardRows / kGroup];
  for (int64_t r = 0; r < rows; r += kGroup)
    seen[r / kGroup] = mask.seen == Seen::all ? Span{0, kTileKeys}
                                              : hull(mask, r, std::min<int64_t>(r + kGroup, rows));
  // a panel of keys stays in the first cache level for all rows
  for (int64_t j = 0; j < kTileKeys; j += kPanel)
    for (int64_t r = 0; r < rows; r += kGroup) {
      const Span s = seen[r / kGroup];
      if (j >= s.end || j + kPanel <= s.begin) continue;
      product<false>(q + r * width, 1, kGroup, panels + j * width, kPanel, width,
                     scores + r * kTileStride + j, kTileStride);
    }
}

// softcap, bias and multiplicities of the keys of a span; `slope` receives d cap(s) / d s
HWY_INLINE void adjust_scores(const FlashAttention& a,
                              const float* bias,
                              const int8_t* counts,
                              Span span,
                              float* scores,
                              float* slope) {
  const Span vectors{span.begin / kLanes * kLanes, round_up(span.end, kLanes)};
  if (a.softcap > 0)
    for (int64_t j = vectors.begin; j < vectors.end; j += kLanes) {
      const V32 t = activate<Activation::tanh>(hn::Div(load(scores + j), all(a.softcap)));
      store(hn::Mul(t, all(a.softcap)), scores + j);
      if (slope != nullptr) store(hn::NegMulAdd(t, t, all(1.0f)), slope + j);
    }
  if (bias != nullptr)
    for (int64_t j = span.begin; j < span.end; ++j) scores[j] += bias[j];
  if (counts != nullptr) {
    const float* logs = flash_log_counts();
    for (int64_t j = span.begin; j < span.end; ++j)
      scores[j] += logs[static_cast<uint8_t>(counts[j])];
  }
}

// the bias of a row from the block's first key on
HWY_INLINE const float* bias_row(
    const FlashAttention& a, const float* bias, int64_t head, int64_t query, int64_t block) {
  if (bias == nullptr) return nullptr;
  return bias + head * (a.T + a.S - 1) + a.T - 1 + block * kTileKeys - query;
}

// sets what lies in `whole` but not in `kept`
HWY_INLINE void set_outside(float* row, Span whole, Span kept, float value) {
  if (kept.empty()) kept = {whole.end, whole.end};
  std::fill(row + whole.begin, row + std::max(whole.begin, kept.begin), value);
  std::fill(row + std::min(kept.end, whole.end), row + whole.end, value);
}

HWY_INLINE Span whole_panels(Span span) {
  return span.empty() ? Span{0, 0} : Span{span.begin / kPanel * kPanel, round_up(span.end, kPanel)};
}

// --- forward -------------------------------------------------------------------------------------

// scores [whole] -> e^(score - maximum), and the running maximum, sum and output of the row
HWY_INLINE void softmax_row(
    Span whole, float* scores, float* maximum, float* sum, float* out, int64_t out_width) {
  V32 max = all(kMinusInf), max2 = max;
  for (int64_t j = whole.begin; j < whole.end; j += kPanel) {
    max = hn::Max(load(scores + j), max);
    max2 = hn::Max(load(scores + j + kLanes), max2);
  }
  max = hn::Max(max, max2);
  const float before = *maximum, after = std::max(before, hn::GetLane(hn::MaxOfLanes(F32(), max)));
  if (after == kMinusInf) {
    // a NaN gets lost in Max, though not in the sum below
    for (int64_t j = whole.begin; j < whole.end; ++j) {
      if (std::isnan(scores[j])) *sum = scores[j];
      scores[j] = 0;
    }
    return;
  }
  const V32 shift = all(after);
  V32 total = zero();
  for (int64_t j = whole.begin; j < whole.end; j += kLanes) {
    const V32 e = exp_of_score(hn::Sub(load(scores + j), shift));
    store(e, scores + j);
    total = hn::Add(total, e);
  }
  if (after != before) {
    const V32 keep = exp_of_score(all(before - after));
    *sum *= hn::GetLane(keep);
    for (int64_t c = 0; c < out_width; c += kLanes) store(hn::Mul(load(out + c), keep), out + c);
    *maximum = after;
  }
  *sum += sum_of(total);
}

void flash_pack_forward(const FlashAttention& a, int64_t b, int64_t g, float* kt, float* values) {
  pack_transposed(a.k.row(b, 0, g), a.k.token, a.S, a.K, kt);
  pack_columns(a.v.row(b, 0, g), a.v.token, a.S, a.V, values);
}

int64_t flash_key_floats(int64_t tokens, int64_t width) {
  // a block reads whole panels up to its end
  return transposed_floats(round_up(tokens, kTileKeys), width);
}
int64_t flash_value_floats(int64_t tokens, int64_t width) {
  return column_floats(tokens, width);
}

void flash_forward_tile(const FlashAttention& a, const FlashForwardItem& item) {
  const FlashShape shape(a);
  const Span rows{item.tile * kForwardRows, std::min(shape.rows, (item.tile + 1) * kForwardRows)};
  const int64_t count = rows.end - rows.begin, padded = round_up(count, kGroup);
  const int64_t o_stride = row_stride(a.V);
  float* q = scratch<16>(kForwardRows * a.K);
  float* out = scratch<17>(kForwardRows * o_stride);
  float* scores = scratch<18>(kForwardRows * kTileStride);
  TileMask mask;
  pack_groups(a.q, item.b, item.g, shape.n, rows, a.K, a.scale, q);
  std::fill(out, out + padded * o_stride, 0.0f);
  float maximum[kForwardRows], sum[kForwardRows];
  for (int64_t r = 0; r < count; ++r) {
    const float sink = a.sinks ? a.sinks[item.g * shape.n + (rows.begin + r) % shape.n] : kMinusInf;
    maximum[r] = sink;
    sum[r] = sink == kMinusInf ? 0.0f : 1.0f;
  }
  for (const int64_t block : blocks_of_rows(a, item.g, rows.begin, count)) {
    mask_tile(a, item.g, rows.begin, count, block, mask);
    if (mask.seen == Seen::none) continue;
    tile_scores(q, a.K, item.kt, block, mask, count, scores);
    for (int64_t first = 0; first < count; first += kGroup) {
      const int64_t last = std::min<int64_t>(first + kGroup, count);
      const Span seen = mask.seen == Seen::all ? Span{0, kTileKeys} : hull(mask, first, last);
      if (seen.empty()) continue;
      const Span whole = whole_panels(seen);
      for (int64_t r = first; r < last; ++r) {
        float* row = scores + r * kTileStride;
        const int64_t head = item.g * shape.n + (rows.begin + r) % shape.n;
        adjust_scores(a, bias_row(a, item.bias, head, (rows.begin + r) / shape.n, block),
                      mask.counted ? mask.counts[r] : nullptr, mask.row[r], row, nullptr);
        set_outside(row, whole, mask.row[r], kMinusInf);
        softmax_row(whole, row, &maximum[r], &sum[r], out + r * o_stride, a.V);
      }
      for (int64_t r = last; r < first + kGroup; ++r)
        std::fill(scores + r * kTileStride + whole.begin, scores + r * kTileStride + whole.end,
                  0.0f);
    }
    // out += weights . values: a panel of values stays in the first cache level for all rows
    for (int64_t c = 0; c < a.V; c += kPanel)
      for (int64_t r = 0; r < count; r += kGroup) {
        const Span seen = mask.seen == Seen::all
                              ? Span{0, kTileKeys}
                              : hull(mask, r, std::min<int64_t>(r + kGroup, count));
        if (seen.empty()) continue;
        product<true>(scores + r * kTileStride + seen.begin, kTileStride, 1,
                      item.values + c * a.S + (block * kTileKeys + seen.begin) * kPanel, kPanel,
                      seen.end - seen.begin, out + r * o_stride + c, o_stride);
      }
  }
  for (int64_t r = 0; r < count; ++r) {
    const int64_t query = (rows.begin + r) / shape.n,
                  head = item.g * shape.n + (rows.begin + r) % shape.n;
    float* to = item.out.row(item.b, query, head);
    const float inverse = sum[r] == 0.0f ? 0.0f : 1.0f / sum[r];
    for (int64_t c = 0; c < a.V; ++c) to[c] = out[r * o_stride + c] * inverse;
    item.lse[(item.b * a.H + head) * a.T + query] =
        sum[r] == 0.0f ? kMinusInf : maximum[r] + std::log(sum[r]);
  }
}

// --- backward ------------------------------------------------------------------------------------

// Packed inputs of one sequence and group.
struct BackwardInputs {
  const float *kt, *k_columns, *vt;
  const float *q, *d_out;                // by groups of rows
  const float *q_panels, *d_out_panels;  // by columns, tile after tile
  const float *lse, *delta;              // per row; lse +inf where a row sees nothing
  float* dq;                             // [rows, row_stride(K)]
};

HWY_INLINE BackwardInputs pack_backward(const FlashAttention& a, const FlashBackwardItem& item) {
  const FlashShape shape(a);
  const int64_t k_stride = row_stride(a.K);
  const int64_t padded = round_up(shape.rows, kBackwardRows);
  float* kt = scratch<20>(flash_key_floats(a.S, a.K));
  float* k_columns = scratch<21>(column_floats(a.S, a.K));
  float* vt = scratch<22>(flash_key_floats(a.S, a.V));
  float* q = scratch<23>(padded * a.K);
  float* d_out = scratch<24>(padded * a.V);
  float* q_panels = scratch<32>(padded * round_up(a.K, kPanel));
  float* d_out_panels = scratch<33>(padded * round_up(a.V, kPanel));
  float* numbers = scratch<25>(2 * padded);
  float* dq = scratch<26>(padded * k_stride);
  pack_transposed(a.k.row(item.b, 0, item.g), a.k.token, a.S, a.K, kt);
  pack_columns(a.k.row(item.b, 0, item.g), a.k.token, a.S, a.K, k_columns);
  pack_transposed(a.v.row(item.b, 0, item.g), a.v.token, a.S, a.V, vt);
  const Span rows{0, shape.rows};
  const ConstHeads& d = item.gradients->d_out;
  pack_groups(a.q, item.b, item.g, shape.n, rows, a.K, a.scale, q);
  pack_groups(d, item.b, item.g, shape.n, rows, a.V, 1.0f, d_out);
  pack_row_panels(a.q, item.b, item.g, shape.n, rows, kBackwardRows, a.K, a.scale, q_panels);
  pack_row_panels(d, item.b, item.g, shape.n, rows, kBackwardRows, a.V, 1.0f, d_out_panels);
  std::fill(dq, dq + padded * k_stride, 0.0f);
  for (int64_t r = 0; r < shape.rows; ++r) {
    const int64_t query = r / shape.n, head = item.g * shape.n + r % shape.n;
    const float *out = item.gradients->out.row(item.b, query, head),
                *d_row = d.row(item.b, query, head);
    float delta = 0;
    for (int64_t c = 0; c < a.V; ++c) delta += out[c] * d_row[c];
    const float lse = item.gradients->lse[(item.b * a.H + head) * a.T + query];
    numbers[r] = lse == kMinusInf ? -kMinusInf : lse;
    numbers[padded + r] = delta;
  }
  return {kt, k_columns, vt, q, d_out, q_panels, d_out_panels, numbers, numbers + padded, dq};
}

// scores -> weights and d_weights -> d_scores of one row; d_bias: where its part of the bias's
// gradient is added up, or null
HWY_INLINE void backward_row(Span whole,
                             float lse,
                             float delta,
                             const float* slope,
                             float* d_bias,
                             float* weights,
                             float* gradient) {
  for (int64_t j = whole.begin; j < whole.end; j += kLanes) {
    const V32 p = exp_of_score(hn::Sub(load(weights + j), all(lse)));
    V32 d = hn::Mul(p, hn::Sub(load(gradient + j), all(delta)));
    store(p, weights + j);
    if (d_bias != nullptr) store(hn::Add(load(d_bias + j), d), d_bias + j);
    if (slope != nullptr) d = hn::Mul(d, load(slope + j));
    store(d, gradient + j);
  }
}

// rows of the tile that see some key of [begin, end)
HWY_INLINE Span rows_that_see(const TileMask& mask, int64_t rows, int64_t begin, int64_t end) {
  if (mask.seen == Seen::all) return {0, rows};
  Span out{rows, 0};
  for (int64_t r = 0; r < rows; ++r)
    if (mask.row[r].begin < end && mask.row[r].end > begin && !mask.row[r].empty())
      out = {std::min(out.begin, r), r + 1};
  return out;
}

// one tile: adds to dK and dV of the block and to dQ of the rows
HWY_INLINE void backward_tile(const FlashAttention& a,
                              const FlashBackwardItem& item,
                              const BackwardInputs& in,
                              int64_t first_row,
                              int64_t rows,
                              int64_t block,
                              const TileMask& mask,
                              float* dk,
                              float* dv) {
  const FlashShape shape(a);
  const int64_t k_stride = row_stride(a.K), v_stride = row_stride(a.V);
  float* weights = scratch<27>(kBackwardRows * kTileStride);
  float* gradient = scratch<28>(kBackwardRows * kTileStride);
  float* slope = a.softcap > 0 ? scratch<29>(kTileStride) : nullptr;
  tile_scores(in.q + first_row * a.K, a.K, in.kt, block, mask, rows, weights);
  tile_scores(in.d_out + first_row * a.V, a.V, in.vt, block, mask, rows, gradient);
  for (int64_t first = 0; first < rows; first += kGroup) {
    const int64_t last = std::min<int64_t>(first + kGroup, rows);
    const Span whole =
        whole_panels(mask.seen == Seen::all ? Span{0, kTileKeys} : hull(mask, first, last));
    for (int64_t r = first; r < first + kGroup; ++r) {
      float *p = weights + r * kTileStride, *d = gradient + r * kTileStride;
      const Span seen = r < last ? mask.row[r] : Span{0, 0};
      if (!seen.empty()) {
        const int64_t query = (first_row + r) / shape.n, h = (first_row + r) % shape.n;
        adjust_scores(a, bias_row(a, item.bias, item.g * shape.n + h, query, block),
                      mask.counted ? mask.counts[r] : nullptr, seen, p, slope);
        set_outside(p, whole, seen, kMinusInf);
        if (a.softcap > 0) set_outside(slope, whole, seen, 0.0f);
        float* d_bias = item.d_bias == nullptr
                            ? nullptr
                            : item.d_bias + h * (shape.distances + 2 * kTileKeys) + kTileKeys +
                                  a.T - 1 + block * kTileKeys - query;
        // a hidden key's product may be anything: its weight is 0, but 0 times infinity is not
        set_outside(d, whole, seen, 0.0f);
        backward_row(whole, in.lse[first_row + r], in.delta[first_row + r], slope, d_bias, p, d);
      }
      // whole rows of the tile are read below
      const Span kept = seen.empty() ? Span{0, 0} : whole;
      set_outside(p, {0, kTileKeys}, kept, 0.0f);
      set_outside(d, {0, kTileKeys}, kept, 0.0f);
    }
  }
  // dV += P^T dO, dK += dS^T Q; a panel of dO or Q stays in the first cache level for all keys
  Span rows_of[kTileKeys / kGroup];
  for (int64_t j = 0; j < kTileKeys; j += kGroup)
    rows_of[j / kGroup] = rows_that_see(mask, rows, j, j + kGroup);
  const auto add_keys = [&](const float* tile, const float* panels, int64_t width, float* sum,
                            int64_t stride) HWY_ATTR {
    panels += first_row * round_up(width, kPanel);
    for (int64_t c = 0; c < width; c += kPanel)
      for (int64_t j = 0; j < kTileKeys; j += kGroup) {
        const Span r = rows_of[j / kGroup];
        if (r.empty()) continue;
        product<true>(tile + r.begin * kTileStride + j, 1, kTileStride,
                      panels + c * kBackwardRows + r.begin * kPanel, kPanel, r.end - r.begin,
                      sum + j * stride + c, stride);
      }
  };
  add_keys(weights, in.d_out_panels, a.V, dv, v_stride);
  add_keys(gradient, in.q_panels, a.K, dk, k_stride);
  // dQ += dS K
  for (int64_t c = 0; c < a.K; c += kPanel)
    for (int64_t r = 0; r < rows; r += kGroup) {
      Span seen = mask.seen == Seen::all ? Span{0, kTileKeys}
                                         : hull(mask, r, std::min<int64_t>(r + kGroup, rows));
      if (seen.empty()) continue;
      product<true>(gradient + r * kTileStride + seen.begin, kTileStride, 1,
                    in.k_columns + c * a.S + (block * kTileKeys + seen.begin) * kPanel, kPanel,
                    seen.end - seen.begin, in.dq + (first_row + r) * k_stride + c, k_stride);
    }
}

void flash_backward_item(const FlashAttention& a, const FlashBackwardItem& item) {
  const FlashShape shape(a);
  const FlashGradients& out = *item.gradients;
  const int64_t k_stride = row_stride(a.K), v_stride = row_stride(a.V);
  const BackwardInputs in = pack_backward(a, item);
  float* dk = scratch<30>(kTileKeys * k_stride);
  float* dv = scratch<31>(kTileKeys * v_stride);
  TileMask mask;
  // which tiles of rows look at each block
  std::vector<std::vector<int64_t>> lookers(static_cast<size_t>(shape.blocks));
  for (int64_t row = 0; row < shape.rows; row += kBackwardRows)
    for (const int64_t block :
         blocks_of_rows(a, item.g, row, std::min(kBackwardRows, shape.rows - row)))
      lookers[static_cast<size_t>(block)].push_back(row);
  for (int64_t block = item.part; block < shape.blocks; block += item.parts) {
    std::fill(dk, dk + kTileKeys * k_stride, 0.0f);
    std::fill(dv, dv + kTileKeys * v_stride, 0.0f);
    for (const int64_t row : lookers[static_cast<size_t>(block)]) {
      const int64_t rows = std::min(kBackwardRows, shape.rows - row);
      mask_tile(a, item.g, row, rows, block, mask);
      if (mask.seen != Seen::none) backward_tile(a, item, in, row, rows, block, mask, dk, dv);
    }
    const int64_t first = block * kTileKeys;
    for (int64_t j = 0; j < std::min(kTileKeys, a.S - first); ++j) {
      std::copy_n(dk + j * k_stride, a.K, out.dk.row(item.b, first + j, item.g));
      std::copy_n(dv + j * v_stride, a.V, out.dv.row(item.b, first + j, item.g));
    }
  }
  // the keys' gradient used queries that held the scale; the queries' own still lacks it
  for (int64_t r = 0; r < shape.rows; ++r) {
    float* to = item.dq != nullptr
                    ? item.dq + r * a.K
                    : out.dq.row(item.b, r / shape.n, item.g * shape.n + r % shape.n);
    for (int64_t c = 0; c < a.K; ++c) to[c] = in.dq[r * k_stride + c] * a.scale;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(flash_key_floats);
HWY_EXPORT(flash_value_floats);
HWY_EXPORT(flash_pack_forward);
HWY_EXPORT(flash_forward_tile);
HWY_EXPORT(flash_backward_item);

namespace {

void check(const FlashAttention& a) {
  require(a.G > 0 && a.H > 0 && a.H % a.G == 0, "flash_attention",
          "{} key-value heads do not divide {} heads", a.G, a.H);
  require(a.B >= 0 && a.T >= 0 && a.S >= 0 && a.K > 0 && a.V > 0 && a.window >= 0 &&
              (a.bias == nullptr || a.bias_size > 0),
          "flash_attention", "B = {}, T = {}, S = {}, K = {}, V = {}, window {}, {} biases", a.B,
          a.T, a.S, a.K, a.V, a.window, a.bias_size);
}

// Tiles in an order that gives equal contiguous shares equal work under a causal mask.
int64_t from_both_ends(int64_t i, int64_t n) {
  return i % 2 == 0 ? i / 2 : n - 1 - i / 2;
}

// Parts of a group's key blocks, so that few groups still give all threads work: a function of the
// shape alone, so that the sums of the parts do not depend on the threads.
int64_t backward_parts(const FlashAttention& a, const FlashShape& shape) {
  constexpr int64_t kItems = 8;
  return std::clamp<int64_t>((kItems + a.B * a.G - 1) / (a.B * a.G), 1,
                             std::max<int64_t>(1, shape.blocks));
}

// dsink_h = - sum over b, i of e^(sink_h - lse_i) delta_i
void sink_gradients(const FlashAttention& a, const FlashGradients& out) {
  for (int64_t h = 0; h < a.H; ++h) {
    double sum = 0;
    for (int64_t b = 0; b < a.B; ++b)
      for (int64_t t = 0; t < a.T; ++t) {
        const float lse = out.lse[(b * a.H + h) * a.T + t];
        if (lse == kMinusInf) continue;
        const float *o = out.out.row(b, t, h), *d = out.d_out.row(b, t, h);
        double delta = 0;
        for (int64_t c = 0; c < a.V; ++c)
          delta += static_cast<double>(o[c]) * static_cast<double>(d[c]);
        sum -= std::exp(static_cast<double>(a.sinks[h]) - static_cast<double>(lse)) * delta;
      }
    out.d_sinks[h] = static_cast<float>(sum);
  }
}

// sums over sequences and parts, and over the distances that share an entry of the table
void bias_gradients(const FlashAttention& a,
                    const FlashShape& shape,
                    int64_t parts,
                    const std::vector<float>& partial,
                    float* d_bias) {
  const int64_t width = shape.distances + 2 * kTileKeys;
  parallel_for(a.H, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) {
      std::vector<double> sum(static_cast<size_t>(a.bias_size));
      for (int64_t b = 0; b < a.B; ++b)
        for (int64_t p = 0; p < parts; ++p) {
          const int64_t item = (b * a.G + h / shape.n) * parts + p;
          const float* from = partial.data() + (item * shape.n + h % shape.n) * width + kTileKeys;
          for (int64_t d = 0; d < shape.distances; ++d) {
            const int64_t distance = d - (a.T - 1) + a.first_key - a.first_query;
            sum[static_cast<size_t>(std::clamp<int64_t>(
                a.bias_zero + distance, 0, a.bias_size - 1))] += static_cast<double>(from[d]);
          }
        }
      for (int64_t i = 0; i < a.bias_size; ++i)
        d_bias[h * a.bias_size + i] = static_cast<float>(sum[static_cast<size_t>(i)]);
    }
  });
}

}  // namespace

void flash_forward(const FlashAttention& a, MutableHeads out, float* lse) {
  check(a);
  if (a.B * a.T == 0) return;
  cap_targets();
  const FlashShape shape(a);
  const std::vector<float> bias = bias_by_distance(a);
  const int64_t keys = HWY_DYNAMIC_DISPATCH(flash_key_floats)(a.S, a.K);
  const int64_t values = HWY_DYNAMIC_DISPATCH(flash_value_floats)(a.S, a.V);
  const int64_t groups = a.B * a.G;
  float* kt = scratch<14>(groups * keys);
  float* v = scratch<15>(groups * values);
  parallel_for(groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      HWY_DYNAMIC_DISPATCH(flash_pack_forward)(a, i / a.G, i % a.G, kt + i * keys, v + i * values);
  });
  const int64_t tiles = (shape.rows + kForwardRows - 1) / kForwardRows;
  parallel_for(groups * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i / tiles;
      HWY_DYNAMIC_DISPATCH(flash_forward_tile)
      (a, {group / a.G, group % a.G, from_both_ends(i % tiles, tiles), kt + group * keys,
           v + group * values, bias.empty() ? nullptr : bias.data(), out, lse});
    }
  });
}

void flash_backward(const FlashAttention& a, const FlashGradients& out) {
  check(a);
  cap_targets();
  const FlashShape shape(a);
  const std::vector<float> bias = bias_by_distance(a);
  const int64_t parts = backward_parts(a, shape), items = a.B * a.G * parts;
  // rows of the table's gradient have a margin: a tile adds whole vectors
  const int64_t bias_floats =
      out.d_bias != nullptr ? shape.n * (shape.distances + 2 * kTileKeys) : 0;
  std::vector<float> d_bias(static_cast<size_t>(items * bias_floats));
  std::vector<float> dq(static_cast<size_t>(parts > 1 ? items * shape.rows * a.K : 0));
  parallel_for(items, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i / parts;
      HWY_DYNAMIC_DISPATCH(flash_backward_item)
      (a, {group / a.G, group % a.G, i % parts, parts, bias.empty() ? nullptr : bias.data(), &out,
           dq.empty() ? nullptr : dq.data() + i * shape.rows * a.K,
           d_bias.empty() ? nullptr : d_bias.data() + i * bias_floats});
    }
  });
  if (!dq.empty())
    parallel_for(a.B * a.G * shape.rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t group = i / shape.rows, r = i % shape.rows;
        float* to = out.dq.row(group / a.G, r / shape.n, group % a.G * shape.n + r % shape.n);
        const float* from = dq.data() + (group * parts * shape.rows + r) * a.K;
        std::copy_n(from, a.K, to);
        for (int64_t p = 1; p < parts; ++p)
          for (int64_t c = 0; c < a.K; ++c) to[c] += from[p * shape.rows * a.K + c];
      }
    });
  if (out.d_bias != nullptr) bias_gradients(a, shape, parts, d_bias, out.d_bias);
  if (out.d_sinks != nullptr) sink_gradients(a, out);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
