// One block of keys for a tile of queries: scores, their softmax, the weighted values; and the
// merge of blocks. Included once per target by attention.cpp.
#if defined(TESSERA_KERNELS_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_ATTENTION_INL_H_
#undef TESSERA_KERNELS_ATTENTION_INL_H_
#else
#define TESSERA_KERNELS_ATTENTION_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tessera/kernels/attention_tiles.h"
#include "tessera/kernels/dot_inl.h"
#include "tessera/kernels/kv_rows.h"
#include "tessera/kernels/kv_rows_inl.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/scratch.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kScoreStride = kKeyBlock + 16;
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
    body(j, RowsView{rows, width, count}, is_packed(type) ? scales : nullptr);
  }
}

// Keys or values of some heads that are needed soon. They are asked for among the products of other
// ones, line by line, for few requests are under way at a time and one more makes the rows at work
// wait for memory, too; and in the order in which they lie, whatever the heads: a core looks ahead
// in one direction per page.
class Ahead {
 public:
  Ahead() = default;
  static Ahead keys(
      const Attention& a, const KeySpan& span, Range part, int64_t g, int64_t heads) {
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
HWY_INLINE void products(const QueryTile& tile,
                         const float* q,
                         int64_t K,
                         RowsView keys,
                         Ahead* also,
                         float* scores) {
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
HWY_INLINE void values_rows(const float* p,
                            RowsView v,
                            Ahead* also,
                            float* out,
                            int64_t out_stride,
                            int64_t width) {
  Ahead ahead = also != nullptr ? *also : Ahead();
  constexpr int kVectors = rows == 1 ? 8 : rows <= 3 ? 4 : 2;  // at most 12 accumulators
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

// Rows row .. row + count of the tile, all of which see a part of a span of keys. p: the weights of
// the first row from the first of these keys on; packed values' scales are multiplied into them.
HWY_INLINE void add_span_values(const Attention& a,
                                const QueryTile& tile,
                                const KeySpan& span,
                                Range part,
                                Ahead* ahead,
                                int64_t count,
                                float* p,
                                float* out) {
  const uint8_t* v = static_cast<const uint8_t*>(span.v) +
                     (part.begin - span.first) * span.v_token_stride + tile.g * span.v_head_stride;
  for_floats(span.type, v, span.v_token_stride, part.end - part.begin, a.V,
             [&](int64_t first, RowsView rows, const float* scales) HWY_ATTR {
               for (int64_t r = 0; scales != nullptr && r < count; ++r)
                 scale_all(scales, rows.count, p + first + r * kScoreStride);
               values_of(count, p + first, rows, ahead, out, partial_floats(a), a.V);
             });
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
    add_span_values(a, tile, span, part, nullptr, count,
                    scores + row * kScoreStride + part.begin - block_begin, out);
  });
}

// --- blocks --------------------------------------------------------------------------------------

// A tile and a block of keys: where its work lies, and what its rows see.
struct TileBlock {
  const QueryTile* tile = nullptr;
  const float* q = nullptr;        // its queries, gathered
  float* scores = nullptr;         // [rows, kScoreStride]
  float* partials = nullptr;       // [rows, partial_floats]
  Range some{0, 0}, common{0, 0};  // keys that at least one row sees, and that all do
  bool any_void = false;           // a row has no weights
};

// the queries of a tile, one after another, and then those for far keys -> q
HWY_INLINE void gather_queries(const Attention& a, const QueryTile& tile, float* q) {
  const auto gather = [&](const float* from, float* to) HWY_ATTR {
    for (int64_t r = 0; r < tile.rows; ++r)
      std::memcpy(to + r * a.K,
                  from + tile.query[r] * a.q_token_stride + tile.head[r] * a.q_head_stride,
                  static_cast<size_t>(a.K) * sizeof(float));
  };
  gather(a.q, q);
  if (a.far_q != nullptr) gather(a.far_q, q + tile.rows * a.K);
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
  const float* row[kQueryRows] = {};  // of the keys asked for
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
                           tile.query[r] * a.bias_query_stride - a.kv.begin();
      for (int64_t j = begin; j < end; ++j)
        if (counts[j] != 0) row[j] += added[here.begin + j];
    }
    out.row[r] = row;
  }
  // whole vectors of positions: a sum's lanes depend on these alone
  if (!hull.empty()) out.seen = {here.begin + hull.begin / kLanes * kLanes, here.begin + hull.end};
  return out;
}

// The part of a block for every row of the tile where a pattern says who sees whom. All rows run
// over the same keys; hidden ones weigh 0.
HWY_INLINE void pattern_partials(const Attention& a, const TileBlock& part, int64_t block) {
  const QueryTile& tile = *part.tile;
  const float* q = part.q;
  float *scores = part.scores, *partials = part.partials;
  const int64_t stride = partial_floats(a), block_begin = block * kKeyBlock;
  const Range here = tile.keys_of(block);
  const PatternBias bias = pattern_bias(a, tile, here);
  const Range seen = bias.seen;
  if (!seen.empty()) {
    // keys that are not there are hidden, but the sums run over them
    if (!all_held(a.kv, seen))
      for (int64_t r = 0; r < tile.rows; ++r)
        std::memset(scores + r * kScoreStride + seen.begin - block_begin, 0,
                    static_cast<size_t>(seen.end - seen.begin) * sizeof(float));
    const Range far = seen & Range{0, a.far_q != nullptr ? a.far_end : 0};
    if (!far.empty()) query_key_products(a, tile, q + tile.rows * a.K, far, block_begin, scores);
    const Range near{far.empty() ? seen.begin : far.end, seen.end};
    if (!near.empty()) query_key_products(a, tile, q, near, block_begin, scores);
  }
  bool any_void = false;
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* partial = partials + r * stride;
    std::memset(partial, 0, static_cast<size_t>(stride) * sizeof(float));
    SoftmaxPart part{kMinusInfinity, 0};
    if (!seen.empty())
      part =
          exponentials(a, bias.row[r] != nullptr ? bias.row[r] + seen.begin - here.begin : nullptr,
                       seen.end - seen.begin, scores + r * kScoreStride + seen.begin - block_begin);
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

// Keys of a block that all tiles take together: as many as give 32 KiB of keys, or of values, over
// all heads, which lie next to each other; a near cache holds them until the last tile has used
// them. Four at least, which products() takes at once.
inline int64_t shared_keys(const Attention& a, const TileBlock* parts, int64_t count) {
  constexpr int64_t kBytes = 32 << 10;
  const int64_t heads = parts[count - 1].tile->g - parts[0].tile->g + 1;
  const int64_t key = heads * kv_row_bytes(a.kv.spans[0].type, std::max(a.K, a.V));
  return std::clamp<int64_t>(kBytes / key / 4 * 4, 4, 16);
}

struct Step {
  const KeySpan* span;
  Range keys;
};

// The steps in which tiles go through a block, first its keys, then its values; and what they ask
// for meanwhile.
class BlockSteps {
 public:
  // keys: what some row sees of the block `here`
  BlockSteps(const Attention& a,
             const TileBlock* parts,
             int64_t count,
             Range keys,
             Range here,
             bool shared)
      : a_(a), g_(parts[0].tile->g), heads_(parts[count - 1].tile->g + 1 - g_) {
    const int64_t size = here.end - here.begin,
                  step = shared ? shared_keys(a, parts, count) : size;
    count_ = cut(keys, step, steps_);
    for (int64_t t = 0; t < count; ++t) rows_ += parts[t].tile->rows;
    // with one row per head the products only wait for memory, and asking delays them
    asks_ = shared && rows_ > count;
    // a thread most often takes the next block after this one
    if (asks_) next_count_ = cut({here.end, here.end + size}, step, steps_ + count_);
  }

  int64_t count() const { return count_; }
  const Step& operator[](int64_t i) const { return steps_[i]; }

  /// Rows that are needed two steps after step i of the keys, or of the values, for one is over too
  /// soon; where values are parts of the keys, the keys of the next block.
  Ahead ahead(bool values, int64_t i) const {
    Ahead ahead;
    if (!asks_) return ahead;
    const int64_t n = count_, soon = i + 2 + (values ? n : 0);
    const bool joint = steps_[0].span->v == steps_[0].span->k;
    if (joint && i % 2 == 0)
      ahead = keys(n + (values ? n / 2 : 0) + i / 2);
    else if (!joint && n <= soon && soon < 2 * n)
      ahead = Ahead::values(a_, *steps_[soon - n].span, steps_[soon - n].keys, g_, heads_);
    else if (!joint)
      ahead = keys(soon < n ? soon : soon - n);
    constexpr int64_t kSums = 8;  // in registers at a time
    const Range here = steps_[i].keys;
    ahead.share_among(rows_ * (here.end - here.begin) * (values ? a_.V : a_.K) / (kSums * kLanes));
    return ahead;
  }

 private:
  int64_t cut(Range keys, int64_t step, Step* steps) const {
    int64_t n = 0;
    for_spans(a_.kv, keys, [&](const KeySpan& span, Range part) {
      for (int64_t j = part.begin; j < part.end; j += step)
        steps[n++] = {&span, {j, std::min(j + step, part.end)}};
    });
    return n;
  }
  Ahead keys(int64_t i) const {
    if (i >= count_ + next_count_) return {};
    return Ahead::keys(a_, *steps_[i].span, steps_[i].keys, g_, heads_);
  }

  const Attention& a_;
  int64_t g_, heads_, count_ = 0, next_count_ = 0, rows_ = 0;
  bool asks_ = false;
  Step steps_[2 * kKeyBlock];
};

// which keys of the block the rows of a tile see
HWY_INLINE void look(TileBlock& part, Range here) {
  const QueryTile& tile = *part.tile;
  part.some = {here.end, here.begin};
  part.common = here;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const Range seen = tile.visible[r] & here;
    part.common = part.common & seen;
    if (!seen.empty())
      part.some = {std::min(part.some.begin, seen.begin), std::max(part.some.end, seen.end)};
  }
  if (part.some.empty()) part.some = {here.begin, here.begin};
  if (part.common.empty()) part.common = {here.end, here.end};
}

// scores -> weights of all rows, and their partials but for the values
HWY_INLINE void weigh(const Attention& a, TileBlock& part, Range here) {
  const QueryTile& tile = *part.tile;
  const int64_t stride = partial_floats(a);
  part.any_void = false;
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* partial = part.partials + r * stride;
    std::memset(partial, 0, static_cast<size_t>(stride) * sizeof(float));
    const Range seen = tile.visible[r] & here;
    SoftmaxPart sums{kMinusInfinity, 0};
    if (!seen.empty()) {
      const float* bias = a.bias ? a.bias + tile.head[r] * a.bias_head_stride +
                                       tile.query[r] * a.bias_query_stride +
                                       (seen.begin - a.kv.begin())
                                 : nullptr;
      sums = exponentials(a, bias, seen.end - seen.begin,
                          part.scores + r * kScoreStride + seen.begin - here.begin);
    }
    partial[kMaximumAt] = sums.maximum;
    partial[kSumAt] = sums.sum;
    part.any_void |= sums.maximum == kMinusInfinity;
  }
}

// weighted values of a step; each row's keys in ascending order: its own ones before the common
// ones, the common, its own after
HWY_INLINE void step_values(const Attention& a,
                            const TileBlock& part,
                            const Step& step,
                            Ahead* ahead,
                            Range here) {
  const QueryTile& tile = *part.tile;
  const int64_t stride = partial_floats(a);
  const auto add = [&](int64_t r, int64_t count, Range keys) HWY_ATTR {
    add_span_values(a, tile, *step.span, keys, ahead, count,
                    part.scores + r * kScoreStride + keys.begin - here.begin,
                    part.partials + r * stride + kValuesAt);
  };
  const auto own = [&](Range keys) HWY_ATTR {
    if ((keys & step.keys).empty()) return;
    for (int64_t r = 0; r < tile.rows; ++r) {
      const Range seen = keys & step.keys & tile.visible[r];
      if (!seen.empty() && part.partials[r * stride + kMaximumAt] != kMinusInfinity)
        add(r, 1, seen);
    }
  };
  own({here.begin, part.common.begin});
  const Range common = part.common & step.keys;
  if (part.any_void)
    own(common);
  else if (!common.empty())
    add(0, tile.rows, common);
  own({part.common.end, here.end});
}

// The part of a block for every row of some tiles, in order of their heads. With `shared` they
// advance together, so that memory is read once, as it lies, whatever the heads.
HWY_INLINE void block_partials(
    const Attention& a, TileBlock* parts, int64_t count, int64_t block, bool shared) {
  if (a.visible != nullptr) {
    for (int64_t t = 0; t < count; ++t) pattern_partials(a, parts[t], block);
    return;
  }
  if (count == 0) return;
  const Range here{block * kKeyBlock, (block + 1) * kKeyBlock};
  Range some{here.end, here.begin};
  for (int64_t t = 0; t < count; ++t) {
    look(parts[t], here);
    if (!parts[t].some.empty())
      some = {std::min(some.begin, parts[t].some.begin), std::max(some.end, parts[t].some.end)};
  }
  const BlockSteps steps(a, parts, count, some, here, shared);
  const auto for_steps = [&](bool values, const auto& body) HWY_ATTR {
    for (int64_t i = 0; i < steps.count(); ++i) {
      Ahead ahead = steps.ahead(values, i);
      for (int64_t t = 0; t < count; ++t) body(steps[i], parts[t], ahead);
    }
  };
  for_steps(false, [&](const Step& step, const TileBlock& part, Ahead& ahead) HWY_ATTR {
    const Range seen = part.some & step.keys;
    if (!seen.empty())
      span_products(a, *part.tile, part.q, *step.span, seen, &ahead,
                    part.scores + seen.begin - here.begin);
  });
  for (int64_t t = 0; t < count; ++t) weigh(a, parts[t], here);
  for_steps(true, [&](const Step& step, const TileBlock& part, Ahead& ahead) HWY_ATTR {
    step_values(a, part, step, &ahead, here);
  });
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

HWY_INLINE void finish(const Attention& a, int64_t query, int64_t head, const float* total) {
  float* out = a.out + query * a.out_token_stride + head * a.out_head_stride;
  const float sum = total[kSumAt];
  for (int64_t c = 0; c < a.V; c += kLanes) {
    const V32 o = sum == 0.0f ? zero() : hn::Div(load(total + kValuesAt + c), all(sum));
    store_upto(o, out + c, std::min<int64_t>(kLanes, a.V - c));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
