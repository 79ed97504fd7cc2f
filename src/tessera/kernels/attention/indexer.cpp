#include "tessera/kernels/attention/indexer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/attention/indexer.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/attention/listed_rows_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"
#include "tessera/kernels/turn_rows_inl.h"

#ifndef TESSERA_KERNELS_INDEXER_ONCE
#define TESSERA_KERNELS_INDEXER_ONCE
namespace tessera::kernels {

// one thread's piece of a query's keys
constexpr int64_t kKeysOfPiece = 1024;
// keys that a team does not divide
constexpr int64_t kKeysOfTeam = 64;

}  // namespace tessera::kernels
#endif  // TESSERA_KERNELS_INDEXER_ONCE

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kKeysAtOnce = 32;  // of 128 floats: 16 KiB, while all heads meet them

// Prefetches what a loop reads next, a cache line a call.
class NextLines {
 public:
  NextLines(const float* from, int64_t floats) : at_(from), end_(from + floats) {}
  HWY_INLINE void prefetch() {
    if (at_ >= end_) return;
    __builtin_prefetch(at_);
    at_ += 16;
  }

 private:
  const float *at_, *end_;
};

// body(s, n, rows, next): keys [s, s + n), which lie one after another, of [begin, end), and those
// that follow
template <class Body>
HWY_INLINE void for_index_keys(const IndexScores& a, int64_t begin, int64_t end, const Body& body) {
  const IndexKeys* span = a.spans;
  int64_t span_first = 0;
  for (int64_t s = begin, n; s < end; s += n) {
    while (s >= span_first + span->count) span_first += (span++)->count;
    const int64_t left = span_first + span->count - s;
    n = std::min({kKeysAtOnce, end - s, left});
    const float* rows = span->k + (s - span_first) * a.D;
    const int64_t after = std::min(kKeysAtOnce, end - s - n);
    NextLines next(rows + n * a.D, std::min(after, left - n) * a.D);
    if (n == left && after > 0) next = {span[1].k, std::min(after, span[1].count) * a.D};
    body(s, n, rows, next);
  }
}

// total += weights[h] max(0, scale q_h . k) for some heads and two vectors of keys, a key a lane
template <int heads>
HWY_INLINE void add_heads(const IndexScores& a,
                          const float* q,
                          const float* weights,
                          const float* turned,
                          V32& total0,
                          V32& total1) {
  V32 sum0[heads], sum1[heads];
#pragma GCC unroll 8
  for (int h = 0; h < heads; ++h) sum0[h] = sum1[h] = zero();
  for (int64_t c = 0; c < a.D; ++c) {
    const V32 key0 = load(turned + c * kKeysAtOnce), key1 = load(turned + c * kKeysAtOnce + kLanes);
#pragma GCC unroll 8
    for (int h = 0; h < heads; ++h) {
      const V32 x = all(q[h * a.D + c]);
      sum0[h] = hn::MulAdd(x, key0, sum0[h]);
      sum1[h] = hn::MulAdd(x, key1, sum1[h]);
    }
  }
  const V32 scale = all(a.scale);
#pragma GCC unroll 8
  for (int h = 0; h < heads; ++h) {
    const V32 weight = all(weights[h]);
    total0 = hn::MulAdd(weight, hn::Max(zero(), hn::Mul(scale, sum0[h])), total0);
    total1 = hn::MulAdd(weight, hn::Max(zero(), hn::Mul(scale, sum1[h])), total1);
  }
}

// totals[j] += weights[h] max(0, scale q_h . k_j) for some keys and vectors of heads, a head a
// lane; q: [D, H]
template <int vectors, int keys>
HWY_INLINE void add_vectors_of_heads(const IndexScores& a,
                                     const float* q,
                                     const float* weights,
                                     const float* rows,
                                     NextLines& next,
                                     float* totals) {
  V32 sum[keys][vectors];
#pragma GCC unroll 16
  for (int j = 0; j < keys; ++j)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sum[j][v] = zero();
  for (int64_t c = 0; c < a.D; ++c) {
    next.prefetch();
    V32 x[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) x[v] = load(q + c * a.H + v * kLanes);
#pragma GCC unroll 16
    for (int j = 0; j < keys; ++j) {
      const V32 key = all(rows[j * a.D + c]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sum[j][v] = hn::MulAdd(x[v], key, sum[j][v]);
    }
  }
  const V32 scale = all(a.scale);
#pragma GCC unroll 16
  for (int j = 0; j < keys; ++j) {
    V32 total = load(totals + j * kLanes);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      total =
          hn::MulAdd(load(weights + v * kLanes), hn::Max(zero(), hn::Mul(scale, sum[j][v])), total);
    store(total, totals + j * kLanes);
  }
}

// The same for n keys; kSums sums in registers.
template <int vectors>
HWY_INLINE void add_vectors_of_heads(const IndexScores& a,
                                     const float* q,
                                     const float* weights,
                                     const float* rows,
                                     int64_t n,
                                     NextLines& next,
                                     float* totals) {
  constexpr int kSums = HWY_MAX_BYTES == 64 ? 16 : 8;
  int64_t j = 0;
  const auto some = [&](auto count) HWY_ATTR {
    for (; j + count <= n; j += count)
      add_vectors_of_heads<vectors, decltype(count)::value>(a, q, weights, rows + j * a.D, next,
                                                            totals + j * kLanes);
  };
  some(std::integral_constant<int, kSums / vectors>());
  if constexpr (kSums / vectors > 4) some(std::integral_constant<int, 4>());
  some(std::integral_constant<int, 1>());
}

// keys [begin, end) of query t, of whole vectors of heads: keys as they lie
void score_keys_of_many_heads(const IndexScores& a, int64_t t, int64_t begin, int64_t end) {
  constexpr int kVectors = HWY_MAX_BYTES == 64 ? 4 : 2;
  const float* weights = a.weights + t * a.H;
  float* out = a.out + t * a.out_stride;
  float* q = scratch<7>(a.D * a.H);
  turn_rows(a.q + t * a.H * a.D, a.D, a.H, a.D, q, a.H, a.H);
  HWY_ALIGN float totals[kKeysAtOnce * kLanes];
  for_index_keys(a, begin, end,
                 [&](int64_t s, int64_t n, const float* rows, NextLines next) HWY_ATTR {
                   std::fill_n(totals, n * kLanes, 0.0F);
                   int64_t h = 0;
                   const auto some = [&](auto count) HWY_ATTR {
                     for (; h + count * kLanes <= a.H; h += count * kLanes)
                       add_vectors_of_heads<decltype(count)::value>(a, q + h, weights + h, rows, n,
                                                                    next, totals);
                   };
                   some(std::integral_constant<int, kVectors>());
                   if constexpr (kVectors > 2) some(std::integral_constant<int, 2>());
                   some(std::integral_constant<int, 1>());
                   int64_t j = 0;
                   const auto total = [&](int64_t i) HWY_ATTR { return load(totals + i * kLanes); };
                   for (; j + 4 <= n; j += 4)
                     hn::StoreU(sums_of_4(total(j), total(j + 1), total(j + 2), total(j + 3)),
                                F32x4(), out + s + j);
                   for (; j < n; ++j) out[s + j] = sum_of(total(j));
                 });
}

// the same of any heads: turned, so that nothing is added across lanes
void score_keys_of_heads(const IndexScores& a, int64_t t, int64_t begin, int64_t end) {
  constexpr int64_t kPair = 2 * kLanes;
  constexpr int kHeads = HWY_MAX_BYTES == 64 ? 8 : 4;  // 16 sums of 32 registers, or 8 of 16
  static_assert(kKeysAtOnce % kPair == 0);
  const float *q = a.q + t * a.H * a.D, *weights = a.weights + t * a.H;
  float* out = a.out + t * a.out_stride;
  float* turned = scratch<7>(a.D * kKeysAtOnce);
  HWY_ALIGN float sums[kKeysAtOnce];
  for_index_keys(a, begin, end, [&](int64_t s, int64_t n, const float* rows, NextLines) HWY_ATTR {
    turn_rows(rows, a.D, n, a.D, turned, kKeysAtOnce, (n + kPair - 1) / kPair * kPair);
    for (int64_t j = 0; j < n; j += kPair) {
      V32 total0 = zero(), total1 = zero();
      int64_t h = 0;
      const auto some = [&](auto count) HWY_ATTR {
        for (; h + count <= a.H; h += count)
          add_heads<decltype(count)::value>(a, q + h * a.D, weights + h, turned + j, total0,
                                            total1);
      };
      some(std::integral_constant<int, kHeads>());
      some(std::integral_constant<int, 2>());
      some(std::integral_constant<int, 1>());
      store(total0, sums + j);
      store(total1, sums + j + kLanes);
    }
    std::copy(sums, sums + n, out + s);
  });
}

bool has_whole_vectors(int64_t heads) {
  return heads % kLanes == 0;
}

// the same of one head without weights
void score_keys(const IndexScores& a, int64_t t, int64_t begin, int64_t end) {
  float* out = a.out + t * a.out_stride;
  const float* each[kKeysAtOnce];
  for_index_keys(a, begin, end, [&](int64_t s, int64_t n, const float* rows, NextLines) HWY_ATTR {
    for (int64_t j = 0; j < n; ++j) each[j] = rows + j * a.D;
    products_of_rows(a.q + t * a.D, a.D, each, n, out + s);
    for (int64_t j = 0; j < n; ++j) out[s + j] *= a.scale;
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(score_keys);
HWY_EXPORT(score_keys_of_heads);
HWY_EXPORT(score_keys_of_many_heads);
HWY_EXPORT(has_whole_vectors);

namespace {

void check(const IndexScores& a) {
  int64_t held = 0;
  for (int64_t i = 0; i < a.n_spans; ++i) held += a.spans[i].count;
  require(held >= a.first + a.T && a.out_stride >= a.first + a.T, "indexer",
          "{} keys and rows of {} scores for queries up to {}", held, a.out_stride,
          a.first + a.T - 1);
  require(a.weights != nullptr || a.H == 1, "indexer", "{} heads without weights", a.H);
}

// keys [begin, end) of query t
void score(const IndexScores& a, int64_t t, int64_t begin, int64_t end) {
  if (begin >= end) return;
  if (a.weights == nullptr)
    HWY_DYNAMIC_DISPATCH(score_keys)(a, t, begin, end);
  else if (HWY_DYNAMIC_DISPATCH(has_whole_vectors)(a.H))
    HWY_DYNAMIC_DISPATCH(score_keys_of_many_heads)(a, t, begin, end);
  else
    HWY_DYNAMIC_DISPATCH(score_keys_of_heads)(a, t, begin, end);
}

}  // namespace

void index_scores(const IndexScores& a) {
  check(a);
  if (a.T == 0) return;
  cap_targets();
  const int64_t pieces = (a.first + a.T + kKeysOfPiece - 1) / kKeysOfPiece;
  parallel_for(a.T * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / pieces, from = i % pieces * kKeysOfPiece;
      score(a, t, from, std::min(from + kKeysOfPiece, a.first + t + 1));
    }
  });
}

void index_scores(const Team& team, const IndexScores* calls, int64_t count) {
  cap_targets();
  const auto pieces = [](const IndexScores& a, int64_t t) {
    return (a.first + t + kKeysOfTeam) / kKeysOfTeam;
  };
  int64_t all = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (calls[i].T > 0) check(calls[i]);
    for (int64_t t = 0; t < calls[i].T; ++t) all += pieces(calls[i], t);
  }
  const Team::Share mine = team.share(all);
  int64_t before = 0;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t t = 0; t < calls[i].T; ++t) {
      // what lies in this thread's share of one query's keys, in one go
      const int64_t own = pieces(calls[i], t),
                    begin = std::clamp<int64_t>(mine.begin - before, 0, own) * kKeysOfTeam,
                    end = std::clamp<int64_t>(mine.end - before, 0, own) * kKeysOfTeam;
      score(calls[i], t, begin, std::min(end, calls[i].first + t + 1));
      before += own;
    }
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
