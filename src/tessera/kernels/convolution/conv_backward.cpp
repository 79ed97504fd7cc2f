#include "tessera/kernels/convolution/conv_backward.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/convolution/conv_backward.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kMaxTaps = 64;

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

HWY_EXPORT(backward_channels);

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
