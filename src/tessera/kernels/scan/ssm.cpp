#include "tessera/kernels/scan/ssm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/scan/ssm.cpp"
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

constexpr int64_t kMaxTaps = 64;
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

// channels [begin, end) of token t; rows: the K inputs that its taps meet
template <Activation kind>
HWY_INLINE void conv_token(const CausalConv& conv,
                           const float* taps,
                           const float* const* rows,
                           int64_t t,
                           int64_t begin,
                           int64_t end) {
  for (int64_t c = begin; c < end; c += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, end - c);
    V32 sum = conv.bias ? load_upto(conv.bias + c, count) : zero();
    for (int64_t j = 0; j < conv.K; ++j)
      sum = hn::MulAdd(load_upto(taps + j * conv.C + c, count), load_upto(rows[j] + c, count), sum);
    store_upto(activate<kind>(sum), conv.y + t * conv.C + c, count);
  }
}

// channels [begin, end); taps: w transposed to [K, C]
void conv_channels(const CausalConv& conv, const float* taps, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 256;  // their taps and inputs stay in the first cache level
  with_activation(conv.activation, [&]<Activation kind>() HWY_ATTR {
    for (int64_t c = begin; c < end; c += kBlock)
      for (int64_t t = 0; t < conv.T; ++t) {
        const float* rows[kMaxTaps];
        for (int64_t j = 0; j < conv.K; ++j) {
          const int64_t source = t - (conv.K - 1) + j;
          rows[j] =
              source >= 0 ? conv.x + source * conv.C : conv.tail + (source + conv.K - 1) * conv.C;
        }
        conv_token<kind>(conv, taps, rows, t, c, std::min(end, c + kBlock));
      }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(ssd_rows);
HWY_EXPORT(conv_channels);

void ssd_scan(const SsdScan& s) {
  require(s.G > 0 && s.H % s.G == 0, "ssd_scan", "{} groups do not divide {} heads", s.G, s.H);
  cap_targets();
  const int64_t grain = 1 + (int64_t{1} << 15) / (1 + s.T * s.N);
  parallel_for(s.H * s.P, grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ssd_rows)(s, begin, end);
  });
}

void causal_conv1d(const CausalConv& conv) {
  require(conv.K >= 1 && conv.K <= 64, "causal_conv1d", "K = {}; expected 1 to 64", conv.K);
  cap_targets();
  const int64_t C = conv.C;
  std::vector<float> taps(static_cast<size_t>(conv.K * C));
  for (int64_t c = 0; c < C; ++c)
    for (int64_t j = 0; j < conv.K; ++j)
      taps[static_cast<size_t>(j * C + c)] = conv.w[c * conv.K + j];
  parallel_for(C, 1 + (int64_t{1} << 15) / (1 + conv.T * conv.K), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(conv_channels)(conv, taps.data(), begin, end);
  });
  // the last K - 1 inputs: what is left of the old tail, then the new ones
  const int64_t keep = std::max<int64_t>(0, conv.K - 1 - conv.T);
  if (keep > 0) std::copy(conv.tail + conv.T * C, conv.tail + (conv.K - 1) * C, conv.tail);
  const int64_t fresh = conv.K - 1 - keep;
  std::copy(conv.x + (conv.T - fresh) * C, conv.x + conv.T * C, conv.tail + keep * C);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
