#include "tessera/kernels/convolution/short_conv.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/convolution/short_conv.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kMaxTaps = 64;

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

// one block of lanes, from the last token to the first; `ahead` holds dp of the next K - 1 tokens,
// slot t mod K
template <bool silu>
HWY_INLINE void backward_block(const CausalConvGradient& g, int64_t c, int64_t count) {
  HWY_ALIGN float ahead[kMaxTaps * kLanes] = {};
  const V32 one = all(1.0f);
  V32 bias_sum = load_upto(g.dbias + c, count);
  const V32 bias = g.bias ? load_upto(g.bias + c, count) : zero();
  for (int64_t t = g.T - 1; t >= 0; --t) {
    const float* x = g.x + c;
    const int64_t first = std::max<int64_t>(0, g.K - 1 - t);  // taps that meet a token
    V32 dp = load_upto(g.dy + t * g.C + c, count);
    if constexpr (silu) {
      V32 p = bias;
      for (int64_t j = first; j < g.K; ++j)
        p = hn::MulAdd(load_upto(g.taps + j * g.C + c, count),
                       load_upto(x + (t - (g.K - 1) + j) * g.C, count), p);
      const V32 s = sigmoid_of({p, zero()});
      dp = hn::Mul(dp, hn::Mul(s, hn::MulAdd(p, hn::Sub(one, s), one)));
    }
    hn::Store(dp, F32(), ahead + t % g.K * kLanes);
    bias_sum = hn::Add(bias_sum, dp);
    V32 dx = zero();
    for (int64_t j = 0; j < g.K; ++j) {
      const int64_t later = t + (g.K - 1) - j;
      if (later < g.T)
        dx = hn::MulAdd(load_upto(g.taps + j * g.C + c, count),
                        hn::Load(F32(), ahead + later % g.K * kLanes), dx);
    }
    store_upto(dx, g.dx + t * g.C + c, count);
    for (int64_t j = first; j < g.K; ++j) {
      float* sum = g.dtaps + j * g.C + c;
      store_upto(
          hn::MulAdd(dp, load_upto(x + (t - (g.K - 1) + j) * g.C, count), load_upto(sum, count)),
          sum, count);
    }
  }
  store_upto(bias_sum, g.dbias + c, count);
}

void backward_channels(const CausalConvGradient& g, int64_t begin, int64_t end) {
  for (int64_t c = begin; c < end; c += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, end - c);
    if (g.activation == Activation::silu)
      backward_block<true>(g, c, count);
    else
      backward_block<false>(g, c, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(conv_channels);
HWY_EXPORT(backward_channels);

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

void causal_conv1d_backward(const CausalConvGradient& g, int64_t begin, int64_t end) {
  require(g.K >= 1 && g.K <= 64, "causal_conv1d_backward", "K = {}; expected 1 to 64", g.K);
  require(g.activation == Activation::identity || g.activation == Activation::silu,
          "causal_conv1d_backward", "activation {}; expected identity or silu",
          static_cast<int>(g.activation));
  cap_targets();
  HWY_DYNAMIC_DISPATCH(backward_channels)(g, begin, end);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
