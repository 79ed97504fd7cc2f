#include "tessera/kernels/attention/indexer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/attention/indexer.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/attention/listed_rows_inl.h"
#include "tessera/kernels/targets.h"

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

constexpr int64_t kKeysAtOnce = 64;  // stay in the first cache while all heads meet them

// keys [begin, end) of query t
void score_keys(const IndexScores& a, int64_t t, int64_t begin, int64_t end) {
  const float* q = a.q + t * a.H * a.D;
  float* out = a.out + t * a.out_stride;
  const V32 scale = all(a.scale);
  const IndexKeys* span = a.spans;
  int64_t span_first = 0;
  HWY_ALIGN float products[kKeysAtOnce] = {};
  HWY_ALIGN float sums[kKeysAtOnce];
  const float* rows[kKeysAtOnce];
  for (int64_t s = begin; s < end; s += kKeysAtOnce) {
    const int64_t n = std::min(kKeysAtOnce, end - s);
    for (int64_t j = 0; j < n; ++j) {
      while (s + j >= span_first + span->count) span_first += (span++)->count;
      rows[j] = span->k + (s + j - span_first) * a.D;
    }
    if (a.weights == nullptr) {
      products_of_rows(q, a.D, rows, n, products);
      for (int64_t j = 0; j < n; j += kLanes) store(hn::Mul(scale, load(products + j)), sums + j);
      std::copy(sums, sums + n, out + s);
      continue;
    }
    std::fill(sums, sums + kKeysAtOnce, 0.0f);
    for (int64_t h = 0; h < a.H; ++h) {
      products_of_rows(q + h * a.D, a.D, rows, n, products);
      const V32 weight = all(a.weights[t * a.H + h]);
      for (int64_t j = 0; j < n; j += kLanes)
        store(
            hn::MulAdd(weight, hn::Max(zero(), hn::Mul(scale, load(products + j))), load(sums + j)),
            sums + j);
    }
    std::copy(sums, sums + n, out + s);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(score_keys);

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
      if (from < to) HWY_DYNAMIC_DISPATCH(score_keys)(a, t, from, to);
    }
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
