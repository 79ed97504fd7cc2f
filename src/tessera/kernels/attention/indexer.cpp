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

}  // namespace tessera::kernels
#endif  // TESSERA_KERNELS_INDEXER_ONCE

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kKeysAtOnce = 32;  // of 128 floats: 16 KiB, while all heads meet them

// body(s, n, rows): keys [s, s + n), which lie one after another, of [begin, end)
template <class Body>
HWY_INLINE void for_index_keys(const IndexScores& a, int64_t begin, int64_t end, const Body& body) {
  const IndexKeys* span = a.spans;
  int64_t span_first = 0;
  for (int64_t s = begin, n; s < end; s += n) {
    while (s >= span_first + span->count) span_first += (span++)->count;
    n = std::min({kKeysAtOnce, end - s, span_first + span->count - s});
    body(s, n, span->k + (s - span_first) * a.D);
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

// keys [begin, end) of query t: turned, so that nothing is added across lanes
void score_keys_of_heads(const IndexScores& a, int64_t t, int64_t begin, int64_t end) {
  constexpr int64_t kPair = 2 * kLanes;
  constexpr int kHeads = HWY_MAX_BYTES == 64 ? 8 : 4;  // 16 sums of 32 registers, or 8 of 16
  static_assert(kKeysAtOnce % kPair == 0);
  const float *q = a.q + t * a.H * a.D, *weights = a.weights + t * a.H;
  float* out = a.out + t * a.out_stride;
  float* turned = scratch<7>(a.D * kKeysAtOnce);
  HWY_ALIGN float sums[kKeysAtOnce];
  for_index_keys(a, begin, end, [&](int64_t s, int64_t n, const float* rows) HWY_ATTR {
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

// the same of one head without weights
void score_keys(const IndexScores& a, int64_t t, int64_t begin, int64_t end) {
  float* out = a.out + t * a.out_stride;
  const float* each[kKeysAtOnce];
  for_index_keys(a, begin, end, [&](int64_t s, int64_t n, const float* rows) HWY_ATTR {
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

void index_scores(const IndexScores& a) {
  int64_t held = 0;
  for (int64_t i = 0; i < a.n_spans; ++i) held += a.spans[i].count;
  require(held >= a.first + a.T && a.out_stride >= a.first + a.T, "indexer",
          "{} keys and rows of {} scores for queries up to {}", held, a.out_stride,
          a.first + a.T - 1);
  require(a.weights != nullptr || a.H == 1, "indexer", "{} heads without weights", a.H);
  if (a.T == 0) return;
  cap_targets();
  const int64_t pieces = (a.first + a.T + kKeysOfPiece - 1) / kKeysOfPiece;
  parallel_for(a.T * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / pieces, from = i % pieces * kKeysOfPiece,
                    to = std::min(from + kKeysOfPiece, a.first + t + 1);
      if (from >= to) continue;
      if (a.weights == nullptr)
        HWY_DYNAMIC_DISPATCH(score_keys)(a, t, from, to);
      else
        HWY_DYNAMIC_DISPATCH(score_keys_of_heads)(a, t, from, to);
    }
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
