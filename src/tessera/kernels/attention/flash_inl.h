// What flash_forward.cpp and flash_backward.cpp share: the product of register tiles, packed
// operands, scores.
#if defined(TESSERA_KERNELS_FLASH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_FLASH_INL_H_
#undef TESSERA_KERNELS_FLASH_INL_H_
#else
#define TESSERA_KERNELS_FLASH_INL_H_
#endif

#include <type_traits>

#include "tessera/kernels/expected_inl.h"
#include "tessera/kernels/attention/flash_tiles.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/random_inl.h"
#include "tessera/kernels/turn_rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// Register tile of all products: kGroup rows of two vectors; 12 accumulators of 16 registers, or 24
// of 32.
#if HWY_MAX_BYTES == 64
constexpr int kGroup = 12;
constexpr int kLinesPerTile = 32;  // that are expected
#else
constexpr int kGroup = 6;
constexpr int kLinesPerTile = 8;
#endif
constexpr int64_t kPanel = 2 * kLanes;
static_assert(kMaxTileKeys % kPanel == 0 && kMaxTileKeys % kGroup == 0);
static_assert(kMaxTileRows % kGroup == 0);

// Floats from one row of a tile of `width` floats to the next: an odd number of cache lines, so
// that a column of the tile does not fall into a few cache sets.
constexpr int64_t tile_stride(int64_t width) {
  return width + (width / 16 % 2 == 0 ? 16 : 32);
}
HWY_INLINE int64_t row_stride(int64_t width) {
  return tile_stride(round_up(width, 16));
}

// --- products ------------------------------------------------------------------------------------

struct TileSums {
  V32 low[kGroup], high[kGroup];
};

template <bool add>
HWY_INLINE void start_tile(const float* c, int64_t c_row, TileSums& sums) {
#pragma GCC unroll 12
  for (int r = 0; r < kGroup; ++r) {
    sums.low[r] = add ? load(c + r * c_row) : zero();
    sums.high[r] = add ? load(c + r * c_row + kLanes) : zero();
  }
}

HWY_INLINE void store_tile(const TileSums& sums, float* c, int64_t c_row) {
#pragma GCC unroll 12
  for (int r = 0; r < kGroup; ++r) {
    store(sums.low[r], c + r * c_row);
    store(sums.high[r], c + r * c_row + kLanes);
  }
}

// sums[r][0 .. kPanel) += sum_d a[r * a_row + d * a_depth] b[d * kPanel ...]
HWY_INLINE void multiply(const float* HWY_RESTRICT a,
                         int64_t a_row,
                         int64_t a_depth,
                         const float* HWY_RESTRICT b,
                         int64_t depth,
                         TileSums& sums) {
  for (int64_t d = 0; d < depth; ++d) {
    const V32 b0 = load(b), b1 = load(b + kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kGroup; ++r) {
      const V32 x = all(a[r * a_row]);
      sums.low[r] = hn::MulAdd(x, b0, sums.low[r]);
      sums.high[r] = hn::MulAdd(x, b1, sums.high[r]);
    }
    a += a_depth;
    b += kPanel;
  }
}

// c[r][0 .. kPanel) += sum_d a[r * a_row + d * a_depth] b[d * kPanel ...]
HWY_INLINE void add_product(const float* a,
                            int64_t a_row,
                            int64_t a_depth,
                            const float* b,
                            int64_t depth,
                            float* c,
                            int64_t c_row) {
  TileSums sums;
  start_tile<true>(c, c_row, sums);
  multiply(a, a_row, a_depth, b, depth, sums);
  store_tile(sums, c, c_row);
}

// --- packing -------------------------------------------------------------------------------------

// panels of kPanel tokens, transposed: to[(t / kPanel) * width * kPanel + c * kPanel + t % kPanel]
HWY_INLINE void pack_transposed(
    const float* from, int64_t token, int64_t tokens, int64_t width, float* to) {
  for (int64_t t = 0; t < tokens; t += kPanel, to += width * kPanel) {
    const int64_t n = std::min(kPanel, tokens - t);
    turn_rows(from + t * token, token, n, width, to, kPanel, kPanel);
  }
}

// one row's part of a panel of columns: `columns` values times `factor`, zeros after them
HWY_INLINE void pack_panel_row(const float* from, int64_t columns, float factor, float* to) {
  if (columns == kPanel) {
    store(hn::Mul(load(from), all(factor)), to);
    store(hn::Mul(load(from + kLanes), all(factor)), to + kLanes);
    return;
  }
  for (int64_t e = 0; e < columns; ++e) to[e] = from[e] * factor;
  std::fill(to + columns, to + kPanel, 0.0f);
}

// panels of kPanel columns of a block of `keys` tokens: to[(c / kPanel) * keys * kPanel +
// t * kPanel + c % kPanel]
HWY_INLINE void pack_columns(
    const float* from, int64_t token, int64_t tokens, int64_t width, int64_t keys, float* to) {
  for (int64_t t = 0; t < tokens; ++t, from += token, to += kPanel)
    for (int64_t c = 0; c < width; c += kPanel)
      pack_panel_row(from + c, std::min(kPanel, width - c), 1.0f, to + c * keys);
}

// of blocks of `keys` tokens
HWY_INLINE int64_t transposed_floats(int64_t tokens, int64_t width, int64_t keys) {
  return round_up(tokens, keys) * width;
}
HWY_INLINE int64_t column_floats(int64_t tokens, int64_t width, int64_t keys) {
  return round_up(tokens, keys) * round_up(width, kPanel);
}

// Row r of group g is query r / n of head g n + r % n; of keys and values, n is 1. Rows that are
// not const will be written.
template <class Float>
void expect_rows(const Heads<Float>& x,
                 int64_t b,
                 int64_t g,
                 int64_t n,
                 Span rows,
                 int64_t width,
                 Expected& soon) {
  if (rows.empty()) return;
  const int64_t first = rows.begin / n, count = (rows.end - 1) / n + 1 - first;
  const bool together = n == 1 || x.head == width;  // the heads of a token
  for (int64_t i = 0; i < (together ? 1 : n); ++i) {
    const StridedRows part{x.row(b, first, g * n + i), x.token, count,
                           together ? n * width : width};
    std::is_const_v<Float> ? soon.read(part) : soon.write(part);
  }
}

// --- scores --------------------------------------------------------------------------------------

// what each kGroup rows of a tile see of it, taken together
class GroupSpans {
 public:
  GroupSpans(const TileMask& mask, const Tile& tile) {
    for (int64_t r = 0; r < tile.count; r += kGroup)
      spans_[r / kGroup] = mask.seen == Seen::all
                               ? Span{0, tile.keys}
                               : hull(mask, r, std::min<int64_t>(r + kGroup, tile.count));
  }
  Span of_row(int64_t r) const { return spans_[r / kGroup]; }

 private:
  Span spans_[kMaxTileRows / kGroup];
};

// body(r, j) for groups of rows and panels of keys, by their first ones, of which the group sees
// something: a panel stays in the first cache level for all rows
template <class Body>
HWY_INLINE void for_seen_panels(const GroupSpans& seen,
                                const Tile& tile,
                                Expected& soon,
                                const Body& body) {
  for (int64_t j = 0; j < tile.keys; j += kPanel)
    for (int64_t r = 0; r < tile.count; r += kGroup) {
      const Span s = seen.of_row(r);
      if (j >= s.end || j + kPanel <= s.begin) continue;
      soon.more(kLinesPerTile);
      body(r, j);
    }
}

// sums[r] += sum over the keys that the row's group sees of weights[r][key] x[key]: x, the block's
// keys, in panels of columns, each of which stays in the first cache level for all rows
HWY_INLINE void add_keys(const float* weights,
                         int64_t weights_stride,
                         const GroupSpans& seen,
                         const Tile& tile,
                         const float* x,
                         int64_t width,
                         float* sums,
                         int64_t sums_stride,
                         Expected& soon) {
  for (int64_t c = 0; c < width; c += kPanel)
    for (int64_t r = 0; r < tile.count; r += kGroup) {
      const Span keys = seen.of_row(r);
      if (keys.empty()) continue;
      soon.more(kLinesPerTile);
      add_product(weights + r * weights_stride + keys.begin, weights_stride, 1,
                  x + c * tile.keys + keys.begin * kPanel, keys.end - keys.begin,
                  sums + r * sums_stride + c, sums_stride);
    }
}

/// Keys [keys] of a row, times factors.
inline HWY_NOINLINE void multiply_row(Span keys, const float* factors, float* row) {
  for (int64_t j = keys.begin; j < keys.end; j += kLanes)
    store(hn::Mul(load(row + j), load(factors + j)), row + j);
}

/// The factors of dropout of row `number` of a group for the keys of a tile that begins at key
/// `first`, or null without dropout.
class TileDropout {
 public:
  TileDropout(const FlashAttention& a, int64_t b, int64_t g) : a_(a), b_(b), g_(g) {}

  HWY_INLINE const float* row(int64_t number, int64_t first, Span keys) {
    return a_.dropout_limit == 0 ? nullptr : drawn(number, first, keys);
  }

 private:
  // out of the way of what runs without dropout
  HWY_NOINLINE const float* drawn(int64_t number, int64_t first, Span keys) {
    const int64_t n = a_.H / a_.G, head = g_ * n + number % n;
    const DropoutRow& row = a_.dropout[b_ * a_.T + number / n];
    const uint64_t element = row.first + static_cast<uint64_t>(head) * row.head +
                             static_cast<uint64_t>(first + keys.begin);
    return dropout_factors(row.key, element, keys.end - keys.begin, a_.dropout_limit,
                           a_.dropout_scale, factors_) -
           keys.begin;
  }

  const FlashAttention& a_;
  int64_t b_, g_;
  HWY_ALIGN float factors_[kMaxTileKeys + 4 * kLanes + 4];
};

// softcap, bias and multiplicities of the keys of a span, in whole vectors: what lies outside it
// may become anything; `slope` receives d cap(s) / d s
HWY_INLINE void adjust_scores(const FlashAttention& a,
                              const float* bias,
                              const int8_t* counts,
                              Span span,
                              float* scores,
                              float* slope) {
  const Span vectors{span.begin / kLanes * kLanes, round_up(span.end, kLanes)};
  if (a.softcap > 0) {
    const V32 cap = all(a.softcap), inverse = all(1.0f / a.softcap);
    for (int64_t j = vectors.begin; j < vectors.end; j += kLanes) {
      const V32 t = tanh_fast(hn::Mul(load(scores + j), inverse));
      store(hn::Mul(t, cap), scores + j);
      if (slope != nullptr) store(hn::NegMulAdd(t, t, all(1.0f)), slope + j);
    }
  }
  if (bias != nullptr)
    for (int64_t j = vectors.begin; j < vectors.end; j += kLanes)
      store(hn::Add(load(scores + j), load(bias + j)), scores + j);
  if (counts != nullptr) {
    const float* logs = flash_log_counts();
    for (int64_t j = span.begin; j < span.end; ++j)
      scores[j] += logs[static_cast<uint8_t>(counts[j])];
  }
}

// sets what lies in `whole`, of whole vectors, but not in `kept`
HWY_INLINE void set_outside(float* row, Span whole, Span kept, float value) {
  if (kept.empty()) kept = {whole.end, whole.end};
  const V32 values = all(value);
  const auto before = [](int64_t end, int64_t j) HWY_ATTR {
    return hn::FirstN(F32(), static_cast<size_t>(std::max<int64_t>(0, end - j)));
  };
  for (int64_t j = whole.begin; j < std::min(kept.begin, whole.end); j += kLanes)
    store(hn::IfThenElse(before(kept.begin, j), values, load(row + j)), row + j);
  for (int64_t j = std::max(whole.begin, kept.end / kLanes * kLanes); j < whole.end; j += kLanes)
    store(hn::IfThenElse(before(kept.end, j), load(row + j), values), row + j);
}

HWY_INLINE Span whole_panels(Span span) {
  return span.empty() ? Span{0, 0} : Span{span.begin / kPanel * kPanel, round_up(span.end, kPanel)};
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
