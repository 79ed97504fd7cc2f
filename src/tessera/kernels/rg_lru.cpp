#include "tessera/kernels/rg_lru.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/rg_lru.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// what one token's gates make of it
struct Gates {
  V32 x, in, rec;  // input and gates after their sigmoids
  V32 a, m;        // decay, and the factor that keeps the variance
};

HWY_INLINE Gates gates_of(const RgLru& l, int64_t t, int64_t c, int64_t count, V32 scale) {
  const int64_t at = t * l.W + c;
  Gates g;
  g.x = load_upto(l.x + at, count);
  g.in = sigmoid_of({load_upto(l.in + at, count), zero()});
  g.rec = sigmoid_of({load_upto(l.rec + at, count), zero()});
  if (l.fresh && t == 0) {
    g.a = zero();
    g.m = all(1.0f);
    return g;
  }
  const V32 log_decay = hn::Neg(hn::Mul(scale, g.rec));
  // a - 1 keeps its accuracy where a is nearly 1, and 1 - a^2 = (1 - a) (1 + a) does so with it;
  // below -80 a float sees no more of a
  const ReducedExponent e = reduce_exponent(hn::Max(all(-80.0f), log_decay));
  const V32 grown = hn::Mul(exp_series(e.r), e.r);
  const V32 a = hn::MulAdd(e.scale, grown, e.scale);
  const V32 a_less_1 = hn::MulAdd(e.scale, grown, hn::Sub(e.scale, all(1.0f)));
  g.a = hn::IfThenElse(hn::Eq(log_decay, log_decay), a, log_decay);
  g.m = hn::Sqrt(hn::Neg(hn::MulAdd(a_less_1, a, a_less_1)));
  return g;
}

void lru_channels(const RgLru& l, int64_t begin, int64_t end) {
  for (int64_t c = begin; c < end; c += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, end - c);
    const V32 scale = load_upto(l.scale + c, count);
    V32 h = l.fresh ? zero() : load_upto(l.state + c, count);
    for (int64_t t = 0; t < l.T; ++t) {
      const Gates g = gates_of(l, t, c, count, scale);
      h = hn::MulAdd(g.a, h, hn::Mul(g.m, hn::Mul(g.in, g.x)));
      store_upto(h, l.y + t * l.W + c, count);
    }
    if (l.T > 0) store_upto(h, l.state + c, count);
  }
}

// With G_t = dy_t + a_{t+1} G_{t+1} (`carry` is the second term) and u = i x:
//   du = m G;  dl = G a h_{t-1} - G u a^2 / m;  drec = -scale dl r (1 - r);  dscale = -sum r dl
void backward_channels(const RgLruGradient& d, int64_t begin, int64_t end) {
  const RgLru& l = d.lru;
  const V32 one = all(1.0f);
  for (int64_t c = begin; c < end; c += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, end - c);
    const V32 scale = load_upto(l.scale + c, count);
    V32 carry = zero();
    V32 scale_sum = load_upto(d.dscale + c, count);
    for (int64_t t = l.T - 1; t >= 0; --t) {
      const int64_t at = t * l.W + c;
      const Gates g = gates_of(l, t, c, count, scale);
      const V32 grad = hn::Add(load_upto(d.dy + at, count), carry);
      carry = hn::Mul(g.a, grad);
      const V32 du = hn::Mul(g.m, grad);
      const V32 gate_slope = hn::Mul(g.in, hn::Sub(one, g.in));
      store_upto(hn::Mul(du, g.in), d.dx + at, count);
      store_upto(hn::Mul(hn::Mul(du, g.x), gate_slope), d.din + at, count);
      V32 dl = zero();
      if (!(l.fresh && t == 0)) {
        const V32 before = t > 0 ? load_upto(l.y + at - l.W, count) : zero();
        const V32 steep = hn::Min(hn::Div(one, g.m), all(kRgLruSteepest));
        const V32 along = hn::Mul(hn::Mul(hn::Mul(g.in, g.x), g.a), steep);
        dl = hn::Mul(carry, hn::Sub(before, along));
      }
      const V32 slope = hn::Mul(g.rec, hn::Sub(one, g.rec));
      store_upto(hn::Neg(hn::Mul(hn::Mul(scale, dl), slope)), d.drec + at, count);
      scale_sum = hn::NegMulAdd(g.rec, dl, scale_sum);
    }
    store_upto(scale_sum, d.dscale + c, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(lru_channels);
HWY_EXPORT(backward_channels);

void rg_lru(const RgLru& l, int64_t begin, int64_t end) {
  cap_targets();
  HWY_DYNAMIC_DISPATCH(lru_channels)(l, begin, end);
}

void rg_lru(const RgLru& l) {
  // borders on 16 channels keep vectors whole
  constexpr int64_t kBlock = 16;
  const int64_t grain = 1 + (int64_t{1} << 12) / (1 + l.T * kBlock);
  parallel_for((l.W + kBlock - 1) / kBlock, grain, [&](int64_t begin, int64_t end) {
    rg_lru(l, begin * kBlock, std::min(l.W, end * kBlock));
  });
}

void rg_lru_backward(const RgLruGradient& d, int64_t begin, int64_t end) {
  cap_targets();
  HWY_DYNAMIC_DISPATCH(backward_channels)(d, begin, end);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
