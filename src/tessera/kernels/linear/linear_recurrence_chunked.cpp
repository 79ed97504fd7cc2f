#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/linear/linear_recurrence_chunked.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/linear/linear_recurrence.h"
#include "tessera/kernels/linear/linear_recurrence_chunk_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"
#include "tessera/kernels/turn_rows_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// Two products with the state a token, whatever the chunk's length: longer chunks read and write
// the state less often, shorter ones have less to do between their own tokens.
constexpr int64_t kTokens = 16;
constexpr int64_t kBlock = 8 * kTokens;      // that a strip takes while its state is near
constexpr int kRows = kLanes == 16 ? 8 : 4;  // of a register tile, with two or three vectors

int64_t whole_tiles(int64_t n) {
  return (n + kRows - 1) / kRows * kRows;
}

// What heads with the same q and k read of a chunk; zeros beyond its tokens and channels.
struct SharedRows {
  float* q;     // [K, kTokens]
  float* k;     // [K / kRows, kTokens, kRows]
  float* dots;  // [kTokens, kTokens]: k_j . q_i

  static int64_t floats(int64_t K) { return (K + whole_tiles(K) + kTokens) * kTokens; }
  SharedRows(float* memory, int64_t K)
      : q(memory), k(q + K * kTokens), dots(k + whole_tiles(K) * kTokens) {}
};

// to[c / kRows][j][c % kRows] = from[j][c]
void tile_rows(const StridedRows& from, float* to) {
  const int64_t whole = from.width / kRows * kRows;
  for (int64_t j = 0; j < kTokens; ++j) {
    const float* row = from.first + j * from.stride;
    float* tiles = to + j * kRows;
    const int64_t copied = j < from.count ? whole : 0;
    for (int64_t c = 0; c < copied; c += kRows) std::copy_n(row + c, kRows, tiles + c * kTokens);
    for (int64_t c = copied; c < whole_tiles(from.width); ++c)
      tiles[c / kRows * kRows * kTokens + c % kRows] =
          j < from.count && c < from.width ? row[c] : 0.0f;
  }
}

// Sums that stay in registers.
template <int vectors>
struct ChunkedTile {
  V32 sum[kRows][vectors];

  HWY_INLINE void clear() {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
      for (int n = 0; n < vectors; ++n) sum[m][n] = zero();
  }
  // factors[m] times row m of the sums
  HWY_INLINE void scale(const float* factors) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
      for (int n = 0; n < vectors; ++n) sum[m][n] = hn::Mul(sum[m][n], all(factors[m]));
  }
  // factors[m * step] times a row
  HWY_INLINE void add(const float* factors, int64_t step, const float* row) {
    V32 x[vectors];
#pragma GCC unroll 4
    for (int n = 0; n < vectors; ++n) x[n] = load(row + n * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const V32 factor = all(factors[m * step]);
#pragma GCC unroll 4
      for (int n = 0; n < vectors; ++n) sum[m][n] = hn::MulAdd(factor, x[n], sum[m][n]);
    }
  }
};

// dots[j][i] = k_j . q_i for the tokens of a chunk's keys
void multiply_rows(const float* k, const float* q, int64_t K, float* dots) {
  constexpr int kVectors = kTokens / kLanes;
  static_assert(kVectors * kLanes == kTokens);
  for (int64_t j = 0; j < kTokens; j += kRows) {
    ChunkedTile<kVectors> tile;
    tile.clear();
    for (int64_t c = 0; c < K; c += kRows)
      for (int64_t e = 0; e < std::min<int64_t>(kRows, K - c); ++e)
        tile.add(k + c * kTokens + j * kRows + e, kRows, q + (c + e) * kTokens);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n)
        store(tile.sum[m][n], dots + (j + m) * kTokens + n * kLanes);
  }
}

void load_shared_rows(
    const LinearRecurrence& r, int64_t head, int64_t t, int64_t count, const SharedRows& rows) {
  const int64_t stride = r.shared_heads() * r.K, first = t * stride + head * r.K;
  turn_rows(r.q + first, stride, count, r.K, rows.q, kTokens, kTokens);
  tile_rows({r.k + first, stride, count, r.K}, rows.k);
  multiply_rows(rows.k, rows.q, r.K, rows.dots);
}

// What the tokens of one head do to each other and to the state.
struct ChunkWeights {
  HWY_ALIGN float score[kTokens][kTokens];  // at [j][i]: what token i reads of the value of j
  HWY_ALIGN float start[kTokens];           // the decay from the chunk's start to i
  float until_end[kTokens];                 // from j to the chunk's end, times the rate
  float whole;                              // the chunk's decay
};

// Decays and rates of a head in a block; beyond its tokens, what leaves the state alone.
struct BlockDecays {
  HWY_ALIGN float decay[kBlock];
  float rate[kBlock];

  BlockDecays(const LinearRecurrence& r, int64_t h, int64_t block, int64_t count) {
    const auto fill = [&](const float* of_tokens, float of_all, float* to) {
      const float* from = of_tokens == nullptr ? &of_all : of_tokens + block * r.H + h;
      const int64_t step = of_tokens == nullptr ? 0 : r.H;
      for (int64_t i = 0; i < count; ++i) to[i] = from[i * step];
      std::fill_n(to + count, kBlock - count, 0.0f);
    };
    fill(r.decay == DecayPer::token ? r.log_decay : nullptr,
         r.decay == DecayPer::head ? r.log_decay[h] : 0.0f, decay);
    fill(r.rate, 1.0f, rate);
    for (int64_t i = 0; i < kBlock; i += kLanes) store(exp_negative(load(decay + i)), decay + i);
  }
};

// of the chunk at `first` of the block
void weigh(const BlockDecays& head, const float* dots, float skip, int64_t first, ChunkWeights& w) {
  constexpr int kVectors = kTokens / kLanes;
  V32 after[kVectors], index[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    index[v] = hn::Iota(F32(), static_cast<float>(v * kLanes));
    after[v] = zero();
  }
  float rest = 1.0f;
#pragma GCC unroll 16
  for (int64_t j = kTokens - 1; j >= 0; --j) {
    const float rate = head.rate[first + j], decay = head.decay[first + j];
    for (int v = 0; v < kVectors; ++v) {
      after[v] = hn::IfThenElse(hn::Eq(index[v], all(static_cast<float>(j))), all(1.0f), after[v]);
      const V32 dot = load(dots + j * kTokens + v * kLanes);
      store(hn::Mul(hn::Mul(after[v], all(rate)), dot), w.score[j] + v * kLanes);
      after[v] = hn::Mul(after[v], all(decay));
    }
    w.until_end[j] = rest * rate;
    rest *= decay;
  }
  w.whole = rest;
  for (int v = 0; v < kVectors; ++v) store(after[v], w.start + v * kLanes);
  for (int64_t i = 0; i < kTokens && skip != 0.0f; ++i) w.score[i][i] += skip;
}

// Some columns of a head's state, copied so that they lie together.
struct ChunkedStrip {
  int64_t h, column, width;
  float* state;  // [whole_tiles(K), width in whole vectors]
};

// What a step asks memory for ahead: rows of the next one, vectors of a strip wide.
struct NextRows {
  const float *v = nullptr, *y = nullptr;  // null: none
  int64_t stride = 0;
};

// One row at a time, between the products, so that what the products read need not wait. As far as
// the second cache level: rows whose strides are powers of two fall into a few sets of the first.
template <int vectors>
HWY_INLINE void expect_row(const float* row) {
#pragma GCC unroll 3
  for (int n = 0; n < vectors; ++n) __builtin_prefetch(row + n * kLanes, 0, 2);
}

// y_i = D_i S^T q_i + sum over j of score_ij v_j for the tile of tokens from i on
template <int vectors>
HWY_INLINE void answer(const LinearRecurrence& r,
                       const ChunkedStrip& s,
                       const ChunkWeights& w,
                       const float* q,
                       const float* values,
                       int64_t i,
                       int64_t count,
                       const float* next,
                       int64_t next_stride,
                       float* y) {
  constexpr int64_t kWidth = vectors * kLanes;
  ChunkedTile<vectors> tile;
  tile.clear();
  for (int64_t m = 0, c = 0; m < kTokens; ++m, next += next_stride) {
    expect_row<vectors>(next);
    const int64_t stop = (m + 1) * r.K / kTokens;
#pragma GCC unroll 2
    for (; c < stop; ++c) tile.add(q + c * kTokens + i, 1, s.state + c * kWidth);
  }
  tile.scale(w.start + i);
#pragma GCC unroll 2
  for (int64_t j = 0; j < i + kRows; ++j) tile.add(w.score[j] + i, 1, values + j * kWidth);
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    if (i + m >= count) return;
    float* out = y + (i + m) * r.H * r.V;
#pragma GCC unroll 3
    for (int n = 0; n < vectors; ++n) {
      if (s.width == kWidth)
        store(tile.sum[m][n], out + n * kLanes);
      else if (n * kLanes < s.width)
        store_upto(tile.sum[m][n], out + n * kLanes, s.width - n * kLanes);
    }
  }
}

// S = D S + sum over j of k_j (until_end_j v_j)^T for a tile of channels
template <int vectors>
HWY_INLINE void advance(float* state, float decay, const float* k, const float* decayed) {
  ChunkedTile<vectors> tile;
  const V32 keep = all(decay);
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 3
    for (int n = 0; n < vectors; ++n)
      tile.sum[m][n] = hn::Mul(keep, load(state + (m * vectors + n) * kLanes));
#pragma GCC unroll 4
  for (int64_t j = 0; j < kTokens; ++j) tile.add(k + j * kRows, 1, decayed + j * vectors * kLanes);
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 3
    for (int n = 0; n < vectors; ++n) store(tile.sum[m][n], state + (m * vectors + n) * kLanes);
}

template <int vectors>
void step(const LinearRecurrence& r,
          const ChunkedStrip& s,
          const SharedRows& rows,
          const ChunkWeights& w,
          int64_t t,
          int64_t count,
          const NextRows& next) {
  constexpr int64_t kWidth = vectors * kLanes;
  const int64_t first = (t * r.H + s.h) * r.V + s.column;
  HWY_ALIGN float values[kTokens][kWidth], decayed[kTokens][kWidth];
  const float* v = r.v + first;
  for (int64_t j = 0; j < kTokens; ++j, v += r.H * r.V) {
    const V32 rest = all(w.until_end[j]);
#pragma GCC unroll 3
    for (int n = 0; n < vectors; ++n) {
      const V32 x = j >= count          ? zero()
                    : s.width == kWidth ? load(v + n * kLanes)
                                        : load_upto(v + n * kLanes, s.width - n * kLanes);
      store(x, values[j] + n * kLanes);
      store(hn::Mul(x, rest), decayed[j] + n * kLanes);
    }
  }
  for (int64_t i = 0; i < count; i += kRows) {
    // the first two tiles ask ahead, others for what is there
    const float* ahead = i == 0 ? next.v : i == kRows ? next.y : nullptr;
    answer<vectors>(r, s, w, rows.q, values[0], i, count, ahead == nullptr ? values[0] : ahead,
                    ahead == nullptr ? 0 : next.stride, r.y + first);
  }
  if (r.state == nullptr && t + count == r.T) return;
  for (int64_t c = 0; c < r.K; c += kRows)
    advance<vectors>(s.state + c * kWidth, w.whole, rows.k + c * kTokens, decayed[0]);
}

// two vectors each; the last one has what is left, up to three
int64_t strips_of(int64_t V) {
  return std::max<int64_t>(1, (V + kLanes - 1) / kLanes / 2);
}

// strips [begin, end) of all heads' columns taken together
void scan_in_chunks(const LinearRecurrence& r, int64_t begin, int64_t end) {
  constexpr int64_t kWide = 2 * kLanes;
  const int64_t strips = strips_of(r.V), state_floats = whole_tiles(r.K) * 3 * kLanes,
                row_floats = SharedRows::floats(r.K);
  float* states = scratch<6>((end - begin) * state_floats);
  float* memory = scratch<8>(kBlock / kTokens * row_floats);
  const auto strip = [&](int64_t unit) {
    const int64_t n = unit % strips, column = n * kWide;
    return ChunkedStrip{unit / strips, column, n + 1 < strips ? kWide : r.V - column,
                        states + (unit - begin) * state_floats};
  };
  const auto padded = [](const ChunkedStrip& s) {
    return (s.width + kLanes - 1) / kLanes * kLanes;
  };
  for (int64_t unit = begin; unit < end; ++unit) {
    const ChunkedStrip s = strip(unit);
    const int64_t given = r.state == nullptr ? 0 : r.K;
    for (int64_t c = 0; c < given; ++c)
      load_row(r.state + (s.h * r.K + c) * r.V + s.column, s.width, padded(s),
               s.state + c * padded(s));
    std::fill_n(s.state + given * padded(s), (whole_tiles(r.K) - given) * padded(s), 0.0f);
  }
  ChunkWeights weights[kBlock / kTokens];
  for (int64_t block = 0; block < r.T; block += kBlock) {
    const int64_t stop = std::min(r.T, block + kBlock);
    int64_t head = -1, shared = -1;  // that weights and rows are of
    for (int64_t unit = begin; unit < end; ++unit) {
      const ChunkedStrip s = strip(unit);
      const auto rows = [&](int64_t t) {
        return SharedRows(memory + (t - block) / kTokens * row_floats, r.K);
      };
      const auto count = [&](int64_t t) { return std::min(kTokens, stop - t); };
      if (shared != r.shared_head(s.h)) {
        shared = r.shared_head(s.h);
        for (int64_t t = block; t < stop; t += kTokens)
          load_shared_rows(r, shared, t, count(t), rows(t));
      }
      if (head != s.h) {
        head = s.h;
        const BlockDecays decays(r, head, block, stop - block);
        for (int64_t t = block; t < stop; t += kTokens)
          weigh(decays, rows(t).dots, r.skip == nullptr ? 0.0f : r.skip[head], t - block,
                weights[(t - block) / kTokens]);
      }
      const auto step_wide = s.width > 2 * kLanes ? step<3> : s.width > kLanes ? step<2> : step<1>;
      for (int64_t t = block; t < stop; t += kTokens) {
        // of the same strip, then the block's first ones of the strip after it
        const bool within = t + kTokens < stop;
        const int64_t after = within ? t + kTokens : block;
        NextRows next;
        if (after + kTokens <= stop && (within || unit + 1 < end)) {
          const ChunkedStrip of = within ? s : strip(unit + 1);
          const int64_t first = (after * r.H + of.h) * r.V + of.column;
          next = {r.v + first, r.y + first, r.H * r.V};
        }
        step_wide(r, s, rows(t), weights[(t - block) / kTokens], t, count(t), next);
      }
    }
  }
  for (int64_t unit = begin; unit < end && r.state != nullptr; ++unit) {
    const ChunkedStrip s = strip(unit);
    for (int64_t c = 0; c < r.K; ++c)
      store_row(s.state + c * padded(s), s.width, r.state + (s.h * r.K + c) * r.V + s.column);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(scan_in_chunks);
HWY_EXPORT(strips_of);

bool has_chunked_form(const LinearRecurrence& r) {
  return r.decay != DecayPer::channel && r.beta == nullptr && r.a == nullptr &&
         r.bonus == nullptr && r.kept == nullptr;
}

void linear_recurrence_chunked(const LinearRecurrence& r) {
  require(has_chunked_form(r), "linear_recurrence_chunked",
          "only the plain rule with shared decays");
  require(r.G >= 0 && (r.G == 0 || r.H % r.G == 0), "linear_recurrence_chunked",
          "{} heads of q and k do not divide {}", r.G, r.H);
  cap_targets();
  const int64_t units = r.H * HWY_DYNAMIC_DISPATCH(strips_of)(r.V);
  const int64_t grain = 1 + (int64_t{1} << 15) * units / (1 + r.T * r.K * r.H * r.V);
  parallel_for(units, grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(scan_in_chunks)(r, begin, end);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
