#include "tessera/kernels/rg_lru.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/rg_lru.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// what one token's gates make of it
struct Gates {
  V32 x, in, rec;  // input and gates after their sigmoids
  V32 a, m;        // decay, and the factor that keeps the variance
};

// 1 / (1 + e^-v), by e^-|v|: over is e^-|v| or 1, under 1 + e^-|v|
struct Fraction {
  V32 over, under;
};
HWY_INLINE Fraction sigmoid_fraction(V32 v) {
  const V32 one = all(1.0f), e = exp_fast(hn::Neg(hn::Abs(v)));
  return {hn::IfThenElse(hn::Lt(v, zero()), e, one), hn::Add(one, e)};
}

// first: the token is its document's first
template <bool first>
HWY_INLINE Gates gates_of(const RgLru& l, int64_t at, int64_t count, V32 scale) {
  const Fraction in = sigmoid_fraction(load_upto(l.in + at, count)),
                 rec = sigmoid_fraction(load_upto(l.rec + at, count));
  Gates g;
  g.x = load_upto(l.x + at, count);
  if constexpr (first) {  // whose recurrence gate has no say, not even if it is NaN
    g.in = hn::Div(in.over, in.under);
    g.rec = hn::Div(rec.over, rec.under);
    g.a = zero();
    g.m = all(1.0f);
    return g;
  }
  // one division for both gates
  const V32 inverse = hn::Div(all(1.0f), hn::Mul(in.under, rec.under));
  g.in = hn::Mul(hn::Mul(in.over, rec.under), inverse);
  g.rec = hn::Mul(hn::Mul(rec.over, in.under), inverse);
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

// token t of the channels from `begin` on, from `before` [W], the state before it
template <bool first>
HWY_INLINE void lru_token(
    const RgLru& l, int64_t t, int64_t begin, int64_t end, const float* before) {
  for (int64_t c = begin; c < end; c += kLanes) {
    const int64_t at = t * l.W + c, count = std::min<int64_t>(kLanes, end - c);
    const Gates g = gates_of<first>(l, at, count, load_upto(l.scale + c, count));
    V32 h = hn::Mul(g.m, hn::Mul(g.in, g.x));
    if constexpr (!first) h = hn::MulAdd(g.a, load_upto(before + c, count), h);
    store_upto(h, l.y + at, count);
  }
}

// Time outside, channels inside: rows are read in the order of memory, and chains of neighbouring
// channels overlap. The state before a token is the row of y before it.
void lru_channels(const RgLru& l, int64_t begin, int64_t end) {
  if (l.T == 0) return;
  if (l.fresh)
    lru_token<true>(l, 0, begin, end, nullptr);
  else
    lru_token<false>(l, 0, begin, end, l.state);
  for (int64_t t = 1; t < l.T; ++t) lru_token<false>(l, t, begin, end, l.y + (t - 1) * l.W);
  std::copy_n(l.y + (l.T - 1) * l.W + begin, end - begin, l.state + begin);
}

// With G_t = dy_t + a_{t+1} G_{t+1} (`carry` [end - begin] is the second term) and u = i x:
//   du = m G;  dl = G a h_{t-1} - G u a^2 / m;  drec = -scale dl r (1 - r);  dscale = -sum r dl
template <bool first>
HWY_INLINE void lru_token_backward(
    const RgLruGradient& d, int64_t t, int64_t begin, int64_t end, float* carry) {
  const RgLru& l = d.lru;
  const V32 one = all(1.0f);
  for (int64_t c = begin; c < end; c += kLanes) {
    const int64_t at = t * l.W + c, count = std::min<int64_t>(kLanes, end - c);
    const V32 scale = load_upto(l.scale + c, count);
    const Gates g = gates_of<first>(l, at, count, scale);
    const V32 grad = hn::Add(load_upto(d.dy + at, count), load_upto(carry + c - begin, count));
    const V32 held = hn::Mul(g.a, grad);
    store_upto(held, carry + c - begin, count);
    const V32 du = hn::Mul(g.m, grad);
    const V32 gate_slope = hn::Mul(g.in, hn::Sub(one, g.in));
    store_upto(hn::Mul(du, g.in), d.dx + at, count);
    store_upto(hn::Mul(hn::Mul(du, g.x), gate_slope), d.din + at, count);
    V32 dl = zero();
    if constexpr (!first) {
      const V32 before = t > 0 ? load_upto(l.y + at - l.W, count) : zero();
      const V32 steep = hn::Min(hn::Div(one, g.m), all(kRgLruSteepest));
      const V32 along = hn::Mul(hn::Mul(hn::Mul(g.in, g.x), g.a), steep);
      dl = hn::Mul(held, hn::Sub(before, along));
    }
    const V32 slope = hn::Mul(g.rec, hn::Sub(one, g.rec));
    store_upto(hn::Neg(hn::Mul(hn::Mul(scale, dl), slope)), d.drec + at, count);
    store_upto(hn::NegMulAdd(g.rec, dl, load_upto(d.dscale + c, count)), d.dscale + c, count);
  }
}

void backward_channels(const RgLruGradient& d, int64_t begin, int64_t end) {
  if (end <= begin) return;
  float* carry = scratch<9>(end - begin);
  std::fill_n(carry, end - begin, 0.0f);
  const int64_t last = d.lru.fresh ? 1 : 0;
  for (int64_t t = d.lru.T - 1; t >= last; --t) lru_token_backward<false>(d, t, begin, end, carry);
  if (d.lru.fresh && d.lru.T > 0) lru_token_backward<true>(d, 0, begin, end, carry);
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
