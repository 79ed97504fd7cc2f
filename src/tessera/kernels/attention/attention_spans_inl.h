// What a tile of queries does with a part of a span of keys: scores, their exponentials, weighted
// values; and asking for what is needed next. Included once per target.
#if defined(TESSERA_KERNELS_ATTENTION_SPANS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_ATTENTION_SPANS_INL_H_
#undef TESSERA_KERNELS_ATTENTION_SPANS_INL_H_
#else
#define TESSERA_KERNELS_ATTENTION_SPANS_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tessera/kernels/attention/attention_tiles.h"
#include "tessera/kernels/weights/dot_inl.h"
#include "tessera/kernels/attention/kv_rows.h"
#include "tessera/kernels/attention/kv_rows_inl.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/turn_rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kScoreStride = kKeyBlock + 2 * kLanes;  // vectors may reach beyond a block
constexpr int64_t kExpandedRows = 32;  // of 128 floats: 16 KiB, half a first-level cache

// --- rows of the cache ---------------------------------------------------------------------------

// body(first, rows, scales): n stored rows as floats, a few at a time; first: the number of the
// first of them; scales: null where the rows are the numbers themselves
template <class Body>
HWY_INLINE void for_floats(
    DType type, const uint8_t* stored, int64_t stride, int64_t n, int64_t width, const Body& body) {
  if (type == DType::f32)
    return body(0,
                RowsView{reinterpret_cast<const float*>(stored),
                         stride / static_cast<int64_t>(sizeof(float)), n},
                nullptr);
  float* rows = scratch<11>(kExpandedRows * width);
  float scales[kExpandedRows];
  for (int64_t j = 0; j < n; j += kExpandedRows) {
    const int64_t count = std::min(kExpandedRows, n - j);
    expand_rows(type, stored + j * stride, stride, count, width, rows, scales);
    body(j, RowsView{rows, width, count}, has_row_scale(type) ? scales : nullptr);
  }
}

// Keys or values of some heads that are needed soon. They are asked for among the products of other
// ones, line by line, for few requests are under way at a time and one more makes the rows at work
// wait for memory, too; and in the order in which they lie, whatever the heads: a core looks ahead
// in one direction per page.
class Ahead {
 public:
  Ahead() = default;
  static Ahead keys(const Attention& a, const KeySpan& span, Range part, int64_t g, int64_t heads) {
    return Ahead(static_cast<const uint8_t*>(span.k), part.begin - span.first,
                 part.end - part.begin, span.k_token_stride, span.k_head_stride, g, heads,
                 kv_row_bytes(span.type, a.K));
  }
  static Ahead values(
      const Attention& a, const KeySpan& span, Range part, int64_t g, int64_t heads) {
    return Ahead(static_cast<const uint8_t*>(span.v), part.begin - span.first,
                 part.end - part.begin, span.v_token_stride, span.v_head_stride, g, heads,
                 kv_row_bytes(span.type, a.V));
  }
  /// How often ask() will be called.
  void share_among(int64_t calls) {
    const int64_t lines = runs_ * ((end_ - begin_ + kLine - 1) / kLine);
    per_call_ = (lines + std::max<int64_t>(calls, 1) - 1) / std::max<int64_t>(calls, 1);
  }
  bool any() const { return runs_ > 0; }
  HWY_INLINE void ask() {
    if (runs_ == 0) return;
    for (int64_t i = 0; i < per_call_; ++i) hwy::Prefetch(at_ + i * kLine);
    at_ += per_call_ * kLine;
    if (at_ < end_) return;
    --runs_;
    at_ = begin_ += stride_;
    end_ += stride_;
  }

 private:
  static constexpr int64_t kLine = HWY_ALIGNMENT;

  Ahead(const uint8_t* data,
        int64_t first,
        int64_t tokens,
        int64_t stride,
        int64_t head_stride,
        int64_t g,
        int64_t heads,
        int64_t row_bytes)
      : stride_(stride) {
    const int64_t bytes = (heads - 1) * head_stride + row_bytes;
    if (tokens == 0 || bytes > stride) return;  // heads do not lie together
    at_ = begin_ = data + first * stride + g * head_stride;
    // tokens without bytes between them are one run
    runs_ = bytes == stride ? 1 : tokens;
    end_ = begin_ + bytes + (tokens - runs_) * stride;
  }

  const uint8_t *at_ = nullptr, *begin_ = nullptr, *end_ = nullptr;  // of a run
  int64_t stride_ = 0, runs_ = 0, per_call_ = 1;
};

// --- scores --------------------------------------------------------------------------------------

// scores of n keys with all query rows, which stay in the first cache level
HWY_INLINE void products(
    const QueryTile& tile, const float* q, int64_t K, RowsView keys, Ahead* also, float* scores) {
  Ahead ahead = also != nullptr ? *also : Ahead();
  for (int64_t j = 0; j < keys.count; j += 4) {
    const RowsView quad{keys.data + j * keys.stride, keys.stride,
                        std::min<int64_t>(4, keys.count - j)};
    float* s = scores + j;
    int64_t r = 0;
    const auto some = [&](auto count) HWY_ATTR {
      constexpr int kRows = decltype(count)::value;
      if (ahead.any())
        dot_products<kRows>(q + r * K, K, quad, K, s + r * kScoreStride, kScoreStride,
                            [&](int64_t) HWY_ATTR { ahead.ask(); });
      else
        dot_products<kRows>(q + r * K, K, quad, K, s + r * kScoreStride, kScoreStride);
      r += kRows;
    };
    // two pairs of rows keep more sums under way than three rows and one
    while (r + kTileRows <= tile.rows && r + kTileRows + 1 != tile.rows)
      some(std::integral_constant<int, kTileRows>());
    while (r + 2 <= tile.rows) some(std::integral_constant<int, 2>());
    while (r < tile.rows) some(std::integral_constant<int, 1>());
  }
  if (also != nullptr) *also = ahead;
}

// scores of a part of a span of keys
HWY_INLINE void span_products(const Attention& a,
                              const QueryTile& tile,
                              const float* q,
                              const KeySpan& span,
                              Range part,
                              Ahead* ahead,
                              float* scores) {
  const uint8_t* k = static_cast<const uint8_t*>(span.k) +
                     (part.begin - span.first) * span.k_token_stride + tile.g * span.k_head_stride;
  for_floats(span.type, k, span.k_token_stride, part.end - part.begin, a.K,
             [&](int64_t first, RowsView rows, const float* scales) HWY_ATTR {
               products(tile, q, a.K, rows, ahead, scores + first);
               for (int64_t r = 0; scales != nullptr && r < tile.rows; ++r)
                 scale_all(scales, rows.count, scores + first + r * kScoreStride);
             });
}

HWY_INLINE void query_key_products(const Attention& a,
                                   const QueryTile& tile,
                                   const float* q,
                                   Range keys,
                                   int64_t block_begin,
                                   float* scores) {
  for_spans(a.kv, keys, [&](const KeySpan& span, Range part) HWY_ATTR {
    span_products(a, tile, q, span, part, nullptr, scores + part.begin - block_begin);
  });
}

// --- one tile alone ------------------------------------------------------------------------------

// Rows of numbers as they are stored, which become floats on the way into the products: for one
// tile, which would not use floats in memory a second time. The sums have the order of
// dot_products() and values_tile().
struct FloatNumbers {
  static constexpr DType type = DType::f32;
  static HWY_INLINE V32 at(const uint8_t* row, int64_t c) {
    return load(reinterpret_cast<const float*>(row) + c);
  }
};
struct HalfNumbers {
  static constexpr DType type = DType::f16;
  static HWY_INLINE V32 at(const uint8_t* row, int64_t c) {
    return halves(reinterpret_cast<const uint16_t*>(row) + c);
  }
};
struct Bf16Numbers {
  static constexpr DType type = DType::bf16;
  static HWY_INLINE V32 at(const uint8_t* row, int64_t c) {
    return bf16s(reinterpret_cast<const uint16_t*>(row) + c);
  }
};

// body(FloatNumbers()) or that of another type; false where rows are no numbers
template <class Body>
HWY_INLINE bool with_numbers(DType type, const Body& body) {
  switch (type) {
    case DType::f32:
      body(FloatNumbers());
      return true;
    case DType::f16:
      body(HalfNumbers());
      return true;
    case DType::bf16:
      body(Bf16Numbers());
      return true;
    default:
      return false;
  }
}

// scores of n keys with some rows; K whole vectors
template <class Numbers, int rows>
HWY_INLINE void stored_products(
    const float* q, int64_t K, const uint8_t* k, int64_t stride, int64_t n, float* scores) {
  int64_t j = 0;
  for (; j + 4 <= n; j += 4, k += 4 * stride) {
    V32 sum[rows][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
      for (int i = 0; i < 4; ++i) sum[r][i] = zero();
    for (int64_t c = 0; c < K; c += kLanes) {
      V32 qs[rows];
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) qs[r] = load(q + r * K + c);
#pragma GCC unroll 8
      for (int i = 0; i < 4; ++i) {
        const V32 key = Numbers::at(k + i * stride, c);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) sum[r][i] = hn::MulAdd(qs[r], key, sum[r][i]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
      hn::StoreU(sums_of_4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]), F32x4(),
                 scores + r * kScoreStride + j);
  }
  for (; j < n; ++j, k += stride)
    for (int r = 0; r < rows; ++r) {
      V32 sum = zero();
      for (int64_t c = 0; c < K; c += kLanes)
        sum = hn::MulAdd(load(q + r * K + c), Numbers::at(k, c), sum);
      scores[r * kScoreStride + j] = sum_of(sum);
    }
}

// out[r][c ...] += sum over n values of p[r][j] v[j][c ...], keys ascending; V whole vectors
template <class Numbers, int rows>
HWY_INLINE void stored_values(const float* p,
                              const uint8_t* v,
                              int64_t stride,
                              int64_t n,
                              float* out,
                              int64_t out_stride,
                              int64_t V) {
#if HWY_MAX_BYTES == 64
  constexpr int kVectors = rows == 1 ? 8 : 4;  // at most 24 sums of 32 registers
#else
  constexpr int kVectors = rows == 1 ? 8 : rows <= 3 ? 4 : 2;  // at most 12 of 16
#endif
  const auto some = [&](auto count, int64_t first) HWY_ATTR {
    constexpr int vectors = decltype(count)::value;
    V32 sum[rows][vectors];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < vectors; ++c) sum[r][c] = load(out + r * out_stride + first + c * kLanes);
    const uint8_t* row = v;
    for (int64_t j = 0; j < n; ++j, row += stride) {
      V32 vs[vectors];
#pragma GCC unroll 8
      for (int c = 0; c < vectors; ++c) vs[c] = Numbers::at(row, first + c * kLanes);
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
      for (int c = 0; c < vectors; ++c) store(sum[r][c], out + r * out_stride + first + c * kLanes);
  };
  int64_t c = 0;
  for (; c + kVectors * kLanes <= V; c += kVectors * kLanes)
    some(std::integral_constant<int, kVectors>(), c);
  for (; c < V; c += kLanes) some(std::integral_constant<int, 1>(), c);
}

// body(std::integral_constant of the number of a tile's rows)
template <class Body>
HWY_INLINE void with_rows(int64_t rows, const Body& body) {
  switch (rows) {
    case 1:
      return body(std::integral_constant<int, 1>());
    case 2:
      return body(std::integral_constant<int, 2>());
    case 3:
      return body(std::integral_constant<int, 3>());
    case 4:
      return body(std::integral_constant<int, 4>());
    case 5:
      return body(std::integral_constant<int, 5>());
    default:
      return body(std::integral_constant<int, 6>());
  }
}

// Whether one tile goes through rows as they are stored.
HWY_INLINE bool reads_stored(const Attention& a) {
  if (a.K % kLanes != 0 || a.V % kLanes != 0) return false;
  for (int64_t i = 0; i < a.kv.size; ++i)
    if (is_packed(a.kv.spans[i].type)) return false;
  return true;
}

template <int rows>
HWY_NOINLINE void stored_scores(
    const Attention& a, int64_t g, const float* q, Range keys, int64_t block_begin, float* scores) {
  for_spans(a.kv, keys, [&](const KeySpan& span, Range part) HWY_ATTR {
    const uint8_t* k = static_cast<const uint8_t*>(span.k) +
                       (part.begin - span.first) * span.k_token_stride + g * span.k_head_stride;
    with_numbers(span.type, [&](auto numbers) HWY_ATTR {
      stored_products<decltype(numbers), rows>(
          q, a.K, k, span.k_token_stride, part.end - part.begin, scores + part.begin - block_begin);
    });
  });
}

template <int rows>
HWY_NOINLINE void add_stored_values(const Attention& a,
                                    int64_t g,
                                    const float* scores,
                                    Range keys,
                                    int64_t block_begin,
                                    float* partials) {
  for_spans(a.kv, keys, [&](const KeySpan& span, Range part) HWY_ATTR {
    const uint8_t* v = static_cast<const uint8_t*>(span.v) +
                       (part.begin - span.first) * span.v_token_stride + g * span.v_head_stride;
    with_numbers(span.type, [&](auto numbers) HWY_ATTR {
      stored_values<decltype(numbers), rows>(scores + part.begin - block_begin, v,
                                             span.v_token_stride, part.end - part.begin,
                                             partials + kValuesAt, partial_floats(a), a.V);
    });
  });
}

// --- scores of a panel ---------------------------------------------------------------------------

// A vector that several products use: compilers would rather read memory for each of them, and a
// core reads less often than it multiplies.
HWY_INLINE V32 in_register(V32 v) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128
  asm("" : "+v"(v.raw));
#endif
  return v;
}

// Dot products of some rows with vectors of keys, a key a lane: nothing is added across lanes.
// Every sum has the order that dot_products gives it, so that a score has one value.
template <int rows, int vectors>
struct KeyLanes {
  V32 sum[rows][vectors];

  HWY_INLINE void clear() {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sum[r][v] = zero();
  }
  HWY_INLINE void add(const KeyLanes& other) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sum[r][v] = hn::Add(sum[r][v], other.sum[r][v]);
  }
  // one column; q: its value of the first row, K apart
  HWY_INLINE void column(const float* q, int64_t K, const float* keys) {
    V32 key[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) key[v] = in_register(hn::Load(F32(), keys + v * kLanes));
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const V32 query = all(q[r * K]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sum[r][v] = hn::MulAdd(query, key[v], sum[r][v]);
    }
  }

  // What the lanes `first` and first + apart of a vector of columns add up, lane l being the
  // columns l, l + kLanes, ...; and both together, which is how sums across lanes begin.
  HWY_INLINE void two_lanes(
      const float* q, int64_t K, const float* keys, int64_t stride, int64_t first, int64_t apart) {
    KeyLanes other;
    clear();
    other.clear();
    int64_t c = first;
    for (; c + apart < K; c += kLanes) {
      column(q + c, K, keys + c * stride);
      other.column(q + c + apart, K, keys + (c + apart) * stride);
    }
    if (c < K) column(q + c, K, keys + c * stride);
    add(other);
  }
  // the lane `first` of fold_to_4
  HWY_INLINE void folded(
      const float* q, int64_t K, const float* keys, int64_t stride, int64_t first) {
    static_assert(kLanes <= 16);
    if constexpr (kLanes == 4) {
      clear();
      for (int64_t c = first; c < K; c += kLanes) column(q + c, K, keys + c * stride);
    } else {
      two_lanes(q, K, keys, stride, first, kLanes / 2);
    }
    if constexpr (kLanes == 16) {
      KeyLanes other;
      other.two_lanes(q, K, keys, stride, first + 4, 8);
      add(other);
    }
  }
  // and their sum as in sums_of_4; what waits for its like waits in memory, for registers are few
  HWY_INLINE void products(const float* q, int64_t K, const float* keys, int64_t stride) {
    KeyLanes waiting[4];
#pragma GCC unroll 1
    for (int64_t l = 0; l < 4; ++l) {
      folded(q, K, keys, stride, l);
      waiting[l] = *this;
    }
    waiting[0].add(waiting[1]);
    waiting[2].add(waiting[3]);
    *this = waiting[0];
    add(waiting[2]);
  }
};

constexpr int64_t kPackedKeys = 64;  // of 64 floats: 16 KiB, half a first cache level

// keys -> packed [K, kPackedKeys], zeros up to whole pairs of vectors
HWY_INLINE void pack_keys(RowsView keys, int64_t K, float* packed) {
  constexpr int64_t kPair = 2 * kLanes;
  turn_rows(keys.data, keys.stride, keys.count, K, packed, kPackedKeys,
            (keys.count + kPair - 1) / kPair * kPair);
}

// scores of packed keys [begin, end) with all rows of a tile; also of those that fill up vectors,
// which the caller does not read or computes later
HWY_INLINE void packed_products(const QueryTile& tile,
                                const float* q,
                                int64_t K,
                                const float* packed,
                                Range keys,
                                float* scores) {
  const auto rows_of = [&](auto count, int64_t r) HWY_ATTR {
    constexpr int kRows = decltype(count)::value;
    for (int64_t j = keys.begin / (2 * kLanes) * (2 * kLanes); j < keys.end; j += 2 * kLanes) {
      KeyLanes<kRows, 2> product;
      product.products(q + r * K, K, packed + j, kPackedKeys);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        store(product.sum[i][0], scores + (r + i) * kScoreStride + j);
        store(product.sum[i][1], scores + (r + i) * kScoreStride + j + kLanes);
      }
    }
  };
  int64_t r = 0;
  for (; r + 3 <= tile.rows; r += 3) rows_of(std::integral_constant<int, 3>(), r);
  for (; r < tile.rows; ++r) rows_of(std::integral_constant<int, 1>(), r);
}

struct SoftmaxPart {
  float maximum, sum;
};

// products of queries and keys -> their logits, without bias
HWY_INLINE V32 logits_of(const Attention& a, V32 products) {
  const V32 v = hn::Mul(products, all(a.scale));
  if (a.softcap == 0) return v;
  return hn::Mul(activate<Activation::tanh>(hn::Div(v, all(a.softcap))), all(a.softcap));
}

// products -> exp(logit - maximum), in place; bias: null or that of the first of the n keys
HWY_INLINE SoftmaxPart exponentials(const Attention& a, const float* bias, int64_t n, float* s) {
  V32 max = all(kMinusInfinity);
  for (int64_t j = 0; j < n; j += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, n - j);
    V32 v = logits_of(a, load_upto(s + j, count));
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

// out[r][c ...] += sum over n keys of p[r][j] v[j][c ...], `vectors` vectors wide, keys ascending;
// before(j) is called before key j
template <int rows, int vectors, class Read, class Write, class Before = Nothing>
HWY_INLINE void values_tile(const float* p,
                            const float* v,
                            int64_t v_stride,
                            int64_t n,
                            float* out,
                            int64_t out_stride,
                            const Read& read,
                            const Write& write,
                            const Before& before = {}) {
  V32 sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < vectors; ++c) sum[r][c] = read(out + r * out_stride + c * kLanes);
  for (int64_t j = 0; j < n; ++j) {
    before(j);
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
HWY_INLINE void values_rows(
    const float* p, RowsView v, Ahead* also, float* out, int64_t out_stride, int64_t width) {
  Ahead ahead = also != nullptr ? *also : Ahead();
#if HWY_MAX_BYTES == 64
  constexpr int kVectors = rows == 1 ? 8 : 4;  // at most 24 accumulators of 32 registers
#else
  constexpr int kVectors = rows == 1 ? 8 : rows <= 3 ? 4 : 2;  // at most 12 of 16
#endif
  const auto read = [](const float* q) HWY_ATTR { return load(q); };
  const auto write = [](V32 x, float* q) HWY_ATTR { store(x, q); };
  int64_t c = 0;
  for (; c + kVectors * kLanes <= width; c += kVectors * kLanes) {
    if (ahead.any())
      values_tile<rows, kVectors>(p, v.data + c, v.stride, v.count, out + c, out_stride, read,
                                  write, [&](int64_t) HWY_ATTR { ahead.ask(); });
    else
      values_tile<rows, kVectors>(p, v.data + c, v.stride, v.count, out + c, out_stride, read,
                                  write);
  }
  for (; c + kLanes <= width; c += kLanes)
    values_tile<rows, 1>(p, v.data + c, v.stride, v.count, out + c, out_stride, read, write);
  if (c < width)
    values_tile<rows, 1>(
        p, v.data + c, v.stride, v.count, out + c, out_stride,
        [&](const float* q) HWY_ATTR { return load_part(q, width - c); },
        [&](V32 x, float* q) HWY_ATTR { store_part(x, q, width - c); });
  if (also != nullptr) *also = ahead;
}

HWY_INLINE void values_of(int64_t rows,
                          const float* p,
                          RowsView v,
                          Ahead* ahead,
                          float* out,
                          int64_t out_stride,
                          int64_t width) {
  switch (rows) {
    case 1:
      return values_rows<1>(p, v, ahead, out, out_stride, width);
    case 2:
      return values_rows<2>(p, v, ahead, out, out_stride, width);
    case 3:
      return values_rows<3>(p, v, ahead, out, out_stride, width);
    case 4:
      return values_rows<4>(p, v, ahead, out, out_stride, width);
    case 5:
      return values_rows<5>(p, v, ahead, out, out_stride, width);
    default:
      return values_rows<6>(p, v, ahead, out, out_stride, width);
  }
}

// Some rows of a tile, all of which see the keys whose values these are. p: the weights of the
// first row from the first of these keys on; packed values' scales are multiplied into them.
HWY_INLINE void add_value_rows(const Attention& a,
                               RowsView values,
                               const float* scales,
                               Ahead* ahead,
                               int64_t count,
                               float* p,
                               float* out) {
  for (int64_t r = 0; scales != nullptr && r < count; ++r)
    scale_all(scales, values.count, p + r * kScoreStride);
  values_of(count, p, values, ahead, out, partial_floats(a), a.V);
}

// body(first, rows, scales) for the values of a part of a span, as for_floats calls it
template <class Body>
HWY_INLINE void for_values(
    const Attention& a, const KeySpan& span, Range part, int64_t g, const Body& body) {
  const uint8_t* v = static_cast<const uint8_t*>(span.v) +
                     (part.begin - span.first) * span.v_token_stride + g * span.v_head_stride;
  for_floats(span.type, v, span.v_token_stride, part.end - part.begin, a.V, body);
}

HWY_INLINE void add_values(const Attention& a,
                           const QueryTile& tile,
                           int64_t row,
                           int64_t count,
                           Range keys,
                           int64_t block_begin,
                           float* scores,
                           float* partials) {
  float* out = partials + row * partial_floats(a) + kValuesAt;
  for_spans(a.kv, keys, [&](const KeySpan& span, Range part) HWY_ATTR {
    for_values(a, span, part, tile.g,
               [&](int64_t first, RowsView values, const float* scales) HWY_ATTR {
                 float* p = scores + row * kScoreStride + part.begin + first - block_begin;
                 add_value_rows(a, values, scales, nullptr, count, p, out);
               });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
