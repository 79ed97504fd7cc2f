#include "tessera/kernels/scan/mamba2.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/scan/mamba2.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

constexpr int kStateRows = 4;  // rows of the state that share the loads of B and C

// Rows p .. p + rows of one head's state over `tokens` tokens from t on: the state goes through the
// registers once for all of them, for loads and stores take longer than the arithmetic. A row's
// operations are the same in whatever company it is.
template <int rows, int tokens>
HWY_INLINE void scan_tokens(const SsdScan& s, int64_t h, int64_t p, const float* decay, int64_t t) {
  const int64_t group = (t * s.G + h / (s.H / s.G)) * s.N, next = s.G * s.N;
  const float *b = s.B + group, *c = s.C + group;
  const float* x = s.x + (t * s.H + h) * s.P + p;
  float* state = s.state + (h * s.P + p) * s.N;
  V32 a[tokens], input[tokens][kStateRows], sum[tokens][kStateRows];
#pragma GCC unroll 2
  for (int i = 0; i < tokens; ++i) {
    a[i] = all(decay[t + i]);
    const float dt = s.dt[(t + i) * s.H + h];
#pragma GCC unroll 4
    for (int r = 0; r < kStateRows; ++r) {
      input[i][r] = all(r < rows ? dt * x[i * s.H * s.P + r] : 0.0f);
      sum[i][r] = zero();
    }
  }
  const auto step = [&](int64_t n, auto&& read, auto&& write) HWY_ATTR {
    V32 bv[tokens], cv[tokens];
#pragma GCC unroll 2
    for (int i = 0; i < tokens; ++i) {
      bv[i] = read(b + i * next + n);
      cv[i] = read(c + i * next + n);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      float* row = state + r * s.N + n;
      V32 v = read(row);
#pragma GCC unroll 2
      for (int i = 0; i < tokens; ++i) {
        v = hn::MulAdd(input[i][r], bv[i], hn::Mul(a[i], v));
        sum[i][r] = hn::MulAdd(v, cv[i], sum[i][r]);
      }
      write(v, row);
    }
  };
  int64_t n = 0;
  for (; n + kLanes <= s.N; n += kLanes)
    step(
        n, [](const float* q) HWY_ATTR { return load(q); },
        [](V32 v, float* q) HWY_ATTR { store(v, q); });
  if (n < s.N)
    step(
        n, [&](const float* q) HWY_ATTR { return load_part(q, s.N - n); },
        [&](V32 v, float* q) HWY_ATTR { store_part(v, q, s.N - n); });
#pragma GCC unroll 2
  for (int i = 0; i < tokens; ++i) {
    HWY_ALIGN float sums[4];
    hn::Store(sums_of_4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]), F32x4(), sums);
    const float* from = x + i * s.H * s.P;
    float* y = s.y + ((t + i) * s.H + h) * s.P + p;
    for (int r = 0; r < rows; ++r) y[r] = s.D ? s.D[h] * from[r] + sums[r] : sums[r];
  }
}

// tokens [begin, end) of rows p .. p + rows
template <int rows>
HWY_INLINE void scan_rows(
    const SsdScan& s, int64_t h, int64_t p, const float* decay, int64_t begin, int64_t end) {
  int64_t t = begin;
  for (; t + 2 <= end; t += 2) scan_tokens<rows, 2>(s, h, p, decay, t);
  if (t < end) scan_tokens<rows, 1>(s, h, p, decay, t);
}

// the rows [begin, end) of all heads' states taken together
void ssd_rows(const SsdScan& s, int64_t begin, int64_t end) {
  constexpr int64_t kTokens = 64;  // whose B and C stay in the second cache level for all rows
  std::vector<float> decay(static_cast<size_t>(s.T));
  for (int64_t row = begin; row < end;) {
    const int64_t h = row / s.P;
    for (int64_t t = 0; t < s.T; ++t)
      decay[static_cast<size_t>(t)] = static_cast<float>(
          std::exp(static_cast<double>(s.dt[t * s.H + h]) * static_cast<double>(s.A[h])));
    const int64_t first = row - h * s.P, last = std::min(end - h * s.P, s.P);
    for (int64_t t = 0; t < s.T; t += kTokens) {
      const int64_t until = std::min(s.T, t + kTokens);
      int64_t p = first;
      for (; p + kStateRows <= last; p += kStateRows)
        scan_rows<kStateRows>(s, h, p, decay.data(), t, until);
      for (; p < last; ++p) scan_rows<1>(s, h, p, decay.data(), t, until);
    }
    row = h * s.P + last;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(ssd_rows);

void ssd_scan(const SsdScan& s) {
  require(s.G > 0 && s.H % s.G == 0, "ssd_scan", "{} groups do not divide {} heads", s.G, s.H);
  cap_targets();
  const int64_t grain = 1 + (int64_t{1} << 15) / (1 + s.T * s.N);
  parallel_for(s.H * s.P, grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ssd_rows)(s, begin, end);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
