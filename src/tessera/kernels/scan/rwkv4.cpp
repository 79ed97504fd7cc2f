#include "tessera/kernels/scan/rwkv4.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/scan/rwkv4.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/threads.h"
#include "tessera/kernels/math_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kQ = kWkv4Chunk;
// below every key, and finite: the difference of two such is 0, not NaN
constexpr float kNothing = -1e38f;

HWY_INLINE V32 aligned(const float* p) {
  return hn::Load(F32(), p);
}
HWY_INLINE void keep(V32 v, float* p) {
  hn::Store(v, F32(), p);
}

struct Sums {
  V32 num, den, top;
};

HWY_INLINE Sums empty_sums() {
  return {zero(), zero(), all(kNothing)};
}
HWY_INLINE Sums load_sums(const float* p, int64_t stride, int64_t count) {
  return {load_upto(p, count), load_upto(p + stride, count), load_upto(p + 2 * stride, count)};
}
HWY_INLINE void store_sums(const Sums& s, float* p, int64_t stride, int64_t count) {
  store_upto(s.num, p, count);
  store_upto(s.den, p + stride, count);
  store_upto(s.top, p + 2 * stride, count);
}

// The larger of two exponents, and e^(a - top) and e^(b - top): one of them is 1.
struct Weights {
  V32 top, a, b;
};
HWY_INLINE Weights weigh(V32 a, V32 b) {
  const V32 difference = hn::Sub(a, b), one = all(1.0f);
  const V32 e = exp_fast(hn::Neg(hn::Abs(difference)));
  const auto a_is_less = hn::Lt(difference, zero());
  return {hn::Max(a, b), hn::IfThenElse(a_is_less, e, one), hn::IfThenElse(a_is_less, one, e)};
}

// after the token (k, v)
HWY_INLINE Sums next(const Sums& s, V32 w, V32 k, V32 v) {
  const Weights e = weigh(hn::Add(s.top, w), k);
  return {hn::MulAdd(e.a, s.num, hn::Mul(e.b, v)), hn::MulAdd(e.a, s.den, e.b), e.top};
}

// Time outside, channels inside: rows are read in the order of memory, and chains of neighbouring
// channels overlap.
void wkv_channels(const Wkv4& s, int64_t begin, int64_t end) {
  for (int64_t t = 0; t < s.T; ++t)
    for (int64_t c = begin; c < end; c += kLanes) {
      const int64_t at = t * s.C + c, count = std::min<int64_t>(kLanes, end - c);
      const Sums sums = s.fresh && t == 0 ? empty_sums() : load_sums(s.state + c, s.C, count);
      if (s.kept && t % kQ == 0) store_sums(sums, s.kept + t / kQ * 3 * s.C + c, s.C, count);
      const V32 k = load_upto(s.k + at, count), v = load_upto(s.v + at, count);
      const Weights e = weigh(sums.top, hn::Add(load_upto(s.u + c, count), k));
      const V32 num = hn::MulAdd(e.a, sums.num, hn::Mul(e.b, v));
      store_upto(hn::Div(num, hn::MulAdd(e.a, sums.den, e.b)), s.y + at, count);
      store_sums(next(sums, load_upto(s.w + c, count), k, v), s.state + c, s.C, count);
    }
}

// Channels whose chains overlap in the backward pass, a whole number of vectors: a chunk's sums of
// them (24 KiB) stay in the first cache level.
constexpr int64_t kTile = 8 * kLanes;

// gradients that reach the sums after a token, [kTile] each
struct Reach {
  float *alpha, *beta, *scale;
};

// the sums before each token of a chunk, [tokens, 3, kTile]
void replay(const Wkv4& s, int64_t c, int64_t channels, int64_t from, int64_t to, float* before) {
  for (int64_t i = 0; i < channels; i += kLanes)
    store_sums(load_sums(s.kept + from / kQ * 3 * s.C + c + i, s.C,
                         std::min<int64_t>(kLanes, channels - i)),
               before + i, kTile, kLanes);
  for (int64_t t = from; t + 1 < to; ++t, before += 3 * kTile)
    for (int64_t i = 0; i < channels; i += kLanes) {
      const int64_t at = t * s.C + c + i, count = std::min<int64_t>(kLanes, channels - i);
      const Sums after = next(load_sums(before + i, kTile, kLanes), load_upto(s.w + c + i, count),
                              load_upto(s.k + at, count), load_upto(s.v + at, count));
      store_sums(after, before + 3 * kTile + i, kTile, kLanes);
    }
}

// With h = dy / den, and alpha, beta the gradients that reach the sums after the token:
//   dv = e^{u+k} h + e^k alpha;  dk = e^{u+k} h (v - y) + e^k (v alpha + beta)
//   du += e^{u+k} h (v - y);     dw += e^w (num alpha + den beta)
//   alpha <- h + e^w alpha;      beta <- -h y + e^w beta
// alpha and beta carry an exponent of their own: what multiplies them is at most e^0, for a later
// denominator holds the sums that they belong to.
HWY_INLINE void reverse(const Wkv4Gradient& g,
                        int64_t t,
                        int64_t c,
                        int64_t count,
                        const Sums& past,
                        const Reach& reach_of) {
  const Wkv4& s = g.wkv;
  const int64_t at = t * s.C + c;
  // of the next tile: its rows lie too far apart for the processor to see them coming
  for (const float* row : {s.k, s.v, static_cast<const float*>(s.y), g.dy})
    hwy::Prefetch(row + at + kTile);
  for (float* row : {g.dk, g.dv}) prefetch_to_write(row + at + kTile);
  const V32 alpha = aligned(reach_of.alpha), beta = aligned(reach_of.beta),
            scale = aligned(reach_of.scale);
  const V32 w = load_upto(s.w + c, count);
  const V32 k = load_upto(s.k + at, count);
  const V32 v = load_upto(s.v + at, count);
  const V32 y = load_upto(s.y + at, count);
  const Weights e = weigh(past.top, hn::Add(load_upto(s.u + c, count), k));
  const V32 den = hn::MulAdd(e.a, past.den, e.b);
  const V32 h = hn::Div(load_upto(g.dy + at, count), den);  // times e^-top
  const V32 present = hn::Mul(e.b, h);
  const V32 later = exp_fast(hn::Min(hn::Add(k, scale), zero()));
  store_upto(hn::MulAdd(later, alpha, present), g.dv + at, count);
  const V32 bonus = hn::Mul(present, hn::Sub(v, y));
  store_upto(hn::Add(load_upto(g.du + c, count), bonus), g.du + c, count);
  store_upto(hn::MulAdd(later, hn::MulAdd(v, alpha, beta), bonus), g.dk + at, count);
  const V32 reach = exp_fast(hn::Min(hn::Add(hn::Add(past.top, w), scale), zero()));
  const V32 through = hn::MulAdd(past.num, alpha, hn::Mul(past.den, beta));
  store_upto(hn::MulAdd(reach, through, load_upto(g.dw + c, count)), g.dw + c, count);
  // the gradients of the sums before the token
  const Weights reached = weigh(hn::Add(scale, w), hn::Neg(e.top));
  const V32 fresh = hn::Mul(reached.b, h);
  keep(reached.top, reach_of.scale);
  keep(hn::MulAdd(reached.a, alpha, fresh), reach_of.alpha);
  keep(hn::NegMulAdd(fresh, y, hn::Mul(reached.a, beta)), reach_of.beta);
}

// Gradients of num and den are those of the sums num e^top and den e^top, times e^top.
void take_state(const Wkv4Gradient& g, int64_t c, int64_t channels, const Reach& reach) {
  const int64_t stride = g.wkv.C;
  for (int64_t i = 0; i < channels; i += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, channels - i);
    const V32 num = load_upto(g.dstate + c + i, count),
              den = load_upto(g.dstate + stride + c + i, count),
              top = load_upto(g.wkv.state + 2 * stride + c + i, count);
    const auto none = hn::And(hn::Eq(num, zero()), hn::Eq(den, zero()));
    keep(num, reach.alpha + i);
    keep(den, reach.beta + i);
    keep(hn::IfThenElse(none, all(kNothing), hn::Neg(top)), reach.scale + i);
  }
}
void give_state(const Wkv4Gradient& g, int64_t c, int64_t channels, const Reach& reach) {
  const int64_t stride = g.wkv.C;
  for (int64_t i = 0; i < channels; i += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, channels - i);
    const V32 top = load_upto(g.wkv.kept + 2 * stride + c + i, count);
    const V32 e = exp_fast(hn::Min(hn::Add(aligned(reach.scale + i), top), zero()));
    store_upto(hn::Mul(e, aligned(reach.alpha + i)), g.dstate + c + i, count);
    store_upto(hn::Mul(e, aligned(reach.beta + i)), g.dstate + stride + c + i, count);
    store_upto(zero(), g.dstate + 2 * stride + c + i, count);
  }
}

void backward_channels(const Wkv4Gradient& g, int64_t begin, int64_t end) {
  const Wkv4& s = g.wkv;
  if (end <= begin) return;
  const int64_t tiles = (end - begin + kTile - 1) / kTile;
  float* before = scratch<9>(kQ * 3 * kTile + tiles * 3 * kTile);
  float* reaches = before + kQ * 3 * kTile;
  const auto reach_of = [&](int64_t tile, int64_t i) {
    float* alpha = reaches + tile * 3 * kTile + i;
    return Reach{alpha, alpha + kTile, alpha + 2 * kTile};
  };
  for (int64_t tile = 0; tile < tiles; ++tile) {
    std::fill_n(reaches + tile * 3 * kTile, 2 * kTile, 0.0f);
    std::fill_n(reaches + (tile * 3 + 2) * kTile, kTile, kNothing);
    if (g.dstate != nullptr && s.T > 0)
      take_state(g, begin + tile * kTile, std::min(kTile, end - begin - tile * kTile),
                 reach_of(tile, 0));
  }
  for (int64_t from = (s.T + kQ - 1) / kQ * kQ - kQ; from >= 0; from -= kQ)
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t c = begin + tile * kTile, channels = std::min(kTile, end - c);
      const int64_t to = std::min(s.T, from + kQ);
      replay(s, c, channels, from, to, before);
      for (int64_t t = to - 1; t >= from; --t)
        for (int64_t i = 0; i < channels; i += kLanes) {
          reverse(g, t, c + i, std::min<int64_t>(kLanes, channels - i),
                  load_sums(before + (t - from) * 3 * kTile + i, kTile, kLanes), reach_of(tile, i));
        }
    }
  if (g.dstate == nullptr || s.T == 0) return;
  for (int64_t tile = 0; tile < tiles; ++tile)
    give_state(g, begin + tile * kTile, std::min(kTile, end - begin - tile * kTile),
               reach_of(tile, 0));
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(wkv_channels);
HWY_EXPORT(backward_channels);

void wkv4(const Wkv4& s, int64_t begin, int64_t end) {
  cap_targets();
  HWY_DYNAMIC_DISPATCH(wkv_channels)(s, begin, end);
}

void wkv4(const Wkv4& s) {
  // borders on 16 channels keep vectors whole
  constexpr int64_t kBlock = 16;
  const int64_t grain = 1 + (int64_t{1} << 12) / (1 + s.T * kBlock);
  parallel_for((s.C + kBlock - 1) / kBlock, grain, [&](int64_t begin, int64_t end) {
    wkv4(s, begin * kBlock, std::min(s.C, end * kBlock));
  });
}

void wkv4_backward(const Wkv4Gradient& g, int64_t begin, int64_t end) {
  cap_targets();
  HWY_DYNAMIC_DISPATCH(backward_channels)(g, begin, end);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
