#include "tessera/kernels/scan/rg_lru.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/scan/rg_lru.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <initializer_list>

#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// Channels whose gates are opened before any of them is used. From a gate to the state is a chain
// of some 150 cycles; cut in two, more chains fit into what a core looks ahead.
constexpr int64_t kTile = 128;

// gates after their sigmoids, [kTile]
struct Gates {
  HWY_ALIGN float in[kTile];
  HWY_ALIGN float rec[kTile];
};

HWY_INLINE V32 aligned(const float* p) {
  return hn::Load(F32(), p);
}
HWY_INLINE void keep(V32 v, float* p) {
  hn::Store(v, F32(), p);
}

// 1 / (1 + e^-v) by e^-|v|: over is e^-|v| or 1, under 1 + e^-|v|
struct Fraction {
  V32 over, under;
};
HWY_INLINE Fraction sigmoid_fraction(V32 v) {
  const V32 one = all(1.0f), e = exp_fast(hn::Neg(hn::Abs(v)));
  return {hn::IfThenElse(hn::Lt(v, zero()), e, one), hn::Add(one, e)};
}

// Of the channels from `at` on. first: the token is its document's first, whose recurrence gate has
// no say, not even if it is NaN.
template <bool first>
HWY_INLINE void open_gates(const RgLru& l, int64_t at, int64_t channels, Gates& g) {
  for (int64_t i = 0; i < channels; i += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, channels - i);
    const Fraction in = sigmoid_fraction(load_upto(l.in + at + i, count)),
                   rec = sigmoid_fraction(load_upto(l.rec + at + i, count));
    if constexpr (first) {
      keep(hn::Div(in.over, in.under), g.in + i);
      keep(hn::Div(rec.over, rec.under), g.rec + i);
    } else {  // one division for both
      const V32 inverse = hn::Div(all(1.0f), hn::Mul(in.under, rec.under));
      keep(hn::Mul(hn::Mul(in.over, rec.under), inverse), g.in + i);
      keep(hn::Mul(hn::Mul(rec.over, in.under), inverse), g.rec + i);
    }
  }
}

// The rows of a token next to one, at `at`. A thread's share of a row ends within a page, and there
// the processor's own prefetch stops.
HWY_INLINE void ask_for(std::initializer_list<const float*> read,
                        std::initializer_list<float*> written,
                        int64_t at) {
  for (const float* rows : read) hwy::Prefetch(rows + at);
  for (float* rows : written) prefetch_to_write(rows + at);
}

// decay, and the factor that keeps the variance
struct Decay {
  V32 a, m;
};
template <bool first>
HWY_INLINE Decay decay_of(V32 scale, V32 rec) {
  if constexpr (first) return {zero(), all(1.0f)};
  const V32 log_decay = hn::Neg(hn::Mul(scale, rec));
  // a - 1 keeps its accuracy where a is nearly 1, and 1 - a^2 = (1 - a) (1 + a) does so with it;
  // below -80 a float sees no more of a
  const ReducedExponent e = reduce_exponent(hn::Max(all(-80.0f), log_decay));
  const V32 grown = hn::Mul(exp_series(e.r), e.r);
  const V32 a = hn::MulAdd(e.scale, grown, e.scale);
  const V32 a_less_1 = hn::MulAdd(e.scale, grown, hn::Sub(e.scale, all(1.0f)));
  return {hn::IfThenElse(hn::Eq(log_decay, log_decay), a, log_decay),
          hn::Sqrt(hn::Neg(hn::MulAdd(a_less_1, a, a_less_1)))};
}

// token t of the channels from `begin` on, from `before` [W], the state before it
template <bool first>
HWY_INLINE void lru_token(
    const RgLru& l, int64_t t, int64_t begin, int64_t end, const float* before) {
  Gates g;
  for (int64_t tile = begin; tile < end; tile += kTile) {
    const int64_t channels = std::min(kTile, end - tile);
    open_gates<first>(l, t * l.W + tile, channels, g);
    for (int64_t i = 0; i < channels; i += kLanes) {
      const int64_t c = tile + i, at = t * l.W + c, count = std::min<int64_t>(kLanes, end - c);
      ask_for({l.in, l.rec, l.x}, {l.y}, at + l.W);
      const Decay d = decay_of<first>(load_upto(l.scale + c, count), aligned(g.rec + i));
      V32 h = hn::Mul(d.m, hn::Mul(aligned(g.in + i), load_upto(l.x + at, count)));
      if constexpr (!first) h = hn::MulAdd(d.a, load_upto(before + c, count), h);
      store_upto(h, l.y + at, count);
    }
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
  Gates gates;
  for (int64_t tile = begin; tile < end; tile += kTile) {
    const int64_t channels = std::min(kTile, end - tile);
    open_gates<first>(l, t * l.W + tile, channels, gates);
    for (int64_t i = 0; i < channels; i += kLanes) {
      const int64_t c = tile + i, at = t * l.W + c, count = std::min<int64_t>(kLanes, end - c);
      ask_for({l.in, l.rec, l.x, l.y, d.dy}, {d.dx, d.din, d.drec}, at - l.W);
      const V32 in = aligned(gates.in + i), rec = aligned(gates.rec + i);
      const V32 x = load_upto(l.x + at, count), scale = load_upto(l.scale + c, count);
      const Decay g = decay_of<first>(scale, rec);
      const V32 grad = hn::Add(load_upto(d.dy + at, count), load_upto(carry + c - begin, count));
      const V32 held = hn::Mul(g.a, grad);
      store_upto(held, carry + c - begin, count);
      const V32 du = hn::Mul(g.m, grad);
      const V32 gate_slope = hn::Mul(in, hn::Sub(one, in));
      store_upto(hn::Mul(du, in), d.dx + at, count);
      store_upto(hn::Mul(hn::Mul(du, x), gate_slope), d.din + at, count);
      V32 dl = zero();
      if constexpr (!first) {
        const V32 before = load_upto(t > 0 ? l.y + at - l.W : d.start + c, count);
        const V32 steep = hn::Min(hn::Div(one, g.m), all(kRgLruSteepest));
        const V32 along = hn::Mul(hn::Mul(hn::Mul(in, x), g.a), steep);
        dl = hn::Mul(held, hn::Sub(before, along));
      }
      const V32 slope = hn::Mul(rec, hn::Sub(one, rec));
      store_upto(hn::Neg(hn::Mul(hn::Mul(scale, dl), slope)), d.drec + at, count);
      store_upto(hn::NegMulAdd(rec, dl, load_upto(d.dscale + c, count)), d.dscale + c, count);
    }
  }
}

void backward_channels(const RgLruGradient& d, int64_t begin, int64_t end) {
  if (end <= begin) return;
  float* carry = scratch<9>(end - begin);
  if (d.dstate != nullptr)
    std::copy(d.dstate + begin, d.dstate + end, carry);
  else
    std::fill_n(carry, end - begin, 0.0f);
  const int64_t last = d.lru.fresh ? 1 : 0;
  for (int64_t t = d.lru.T - 1; t >= last; --t) lru_token_backward<false>(d, t, begin, end, carry);
  if (d.lru.fresh && d.lru.T > 0) lru_token_backward<true>(d, 0, begin, end, carry);
  if (d.dstate != nullptr) std::copy_n(carry, end - begin, d.dstate + begin);
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
