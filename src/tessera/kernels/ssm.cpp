#include "tessera/kernels/ssm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/ssm.cpp"
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

// rows p .. p + rows of one head's state over all tokens
template <int rows>
HWY_INLINE void scan_rows(const SsdScan& s, int64_t h, int64_t p, const float* decay) {
  const int64_t g = h / (s.H / s.G);
  float* state = s.state + (h * s.P + p) * s.N;
  for (int64_t t = 0; t < s.T; ++t) {
    const float* b = s.B + (t * s.G + g) * s.N;
    const float* c = s.C + (t * s.G + g) * s.N;
    const float* x = s.x + (t * s.H + h) * s.P + p;
    const V32 a = all(decay[t]);
    const float dt = s.dt[t * s.H + h];
    V32 input[kStateRows];
    V32 sum[kStateRows];
#pragma GCC unroll 4
    for (int r = 0; r < kStateRows; ++r) {
      input[r] = all(r < rows ? dt * x[r] : 0.0f);
      sum[r] = zero();
    }
    const auto step = [&](int64_t n, auto&& read, auto&& write) HWY_ATTR {
      const V32 bv = read(b + n);
      const V32 cv = read(c + n);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        float* row = state + r * s.N + n;
        const V32 v = hn::MulAdd(input[r], bv, hn::Mul(a, read(row)));
        write(v, row);
        sum[r] = hn::MulAdd(v, cv, sum[r]);
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
    HWY_ALIGN float sums[4];
    hn::Store(sums_of_4(sum[0], sum[1], sum[2], sum[3]), F32x4(), sums);
    float* y = s.y + (t * s.H + h) * s.P + p;
    for (int r = 0; r < rows; ++r) y[r] = s.D ? s.D[h] * x[r] + sums[r] : sums[r];
  }
}

// the rows [begin, end) of all heads' states taken together
void ssd_rows(const SsdScan& s, int64_t begin, int64_t end) {
  std::vector<float> decay(static_cast<size_t>(s.T));
  for (int64_t row = begin; row < end;) {
    const int64_t h = row / s.P;
    for (int64_t t = 0; t < s.T; ++t)
      decay[static_cast<size_t>(t)] = static_cast<float>(
          std::exp(static_cast<double>(s.dt[t * s.H + h]) * static_cast<double>(s.A[h])));
    const int64_t stop = std::min(end, (h + 1) * s.P);
    for (; row + kStateRows <= stop; row += kStateRows)
      scan_rows<kStateRows>(s, h, row - h * s.P, decay.data());
    for (; row < stop; ++row) scan_rows<1>(s, h, row - h * s.P, decay.data());
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
