#include "tessera/kernels/selective_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/selective_scan.cpp"
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

constexpr int64_t kQ = kSelectiveScanChunk;

HWY_INLINE V32 aligned(const float* p) {
  return hn::Load(F32(), p);
}
HWY_INLINE void keep(V32 v, float* p) {
  hn::Store(v, F32(), p);
}

// lanes of a row that blocks of channels side by side share: broadcasts of B and C, sums of dB and
// dC
constexpr int kBlocks = 2;
constexpr float kLog2E = 1.44269504f;

// ln(1 + e^x) and its derivative
struct Softplus {
  V32 value, slope;
};
HWY_INLINE Softplus softplus_of(V32 x) {
  // ln(1 + e) / e over [0, 1]: least relative error (4e-8) among polynomials with p(0) = 1
  constexpr float c[] = {1.0f,
                         -0.49999648332595825f,
                         0.3332132399082184f,
                         -0.24857163429260254f,
                         0.191536545753479f,
                         -0.13753803074359894f,
                         0.07920453697443008f,
                         -0.030065789818763733f,
                         0.005364823155105114f};
  const V32 one = all(1.0f), e = exp_fast(hn::Neg(hn::Abs(x)));
  V32 p = all(c[8]);
#pragma GCC unroll 8
  for (int i = 7; i >= 0; --i) p = hn::MulAdd(p, e, all(c[i]));
  const V32 slope = hn::Div(hn::IfThenElse(hn::Lt(x, zero()), e, one), hn::Add(one, e));
  return {hn::MulAdd(p, e, hn::IfThenElse(hn::Lt(x, zero()), zero(), x)), slope};
}

// What does not depend on the state, of one chunk of tokens of `blocks` blocks of lanes; arrays
// [tokens, blocks, lanes]. Its chains are long: here those of neighbouring tokens overlap.
template <int blocks>
struct Steps {
  HWY_ALIGN float deltas[kQ * blocks * kLanes];
  HWY_ALIGN float inputs[kQ * blocks * kLanes];  // delta x
  bool bounded = true;                           // every delta A log2 e is within [-126, 0]

  // a: A log2 e [N, blocks, lanes]; slope(at, v) takes the derivatives of the softplus
  template <class Slope>
  HWY_INLINE void compute(const SelectiveScan& s,
                          int64_t c,
                          int64_t count,
                          int64_t from,
                          int64_t to,
                          const float* a,
                          const Slope& slope) {
    for (int i = 0; i < blocks; ++i) {
      const int64_t first = c + i * kLanes, lanes = count - i * kLanes;
      V32 least = zero(), sum = zero();
      for (int64_t n = 0; n < s.N; ++n) {
        const V32 v = aligned(a + (n * blocks + i) * kLanes);
        least = hn::Min(least, v);
        sum = hn::Add(sum, v);
      }
      least = hn::MulAdd(sum, zero(), least);  // NaN if any A is NaN or infinite
      const V32 bias = load_upto(s.dt_bias + first, lanes);
      for (int64_t t = from; t < to; ++t) {
        const int64_t at = ((t - from) * blocks + i) * kLanes;
        const Softplus delta = softplus_of(hn::Add(load_upto(s.dt + t * s.E + first, lanes), bias));
        keep(delta.value, deltas + at);
        const int64_t ahead = t * s.E + first + blocks * kLanes;  // no cache sees a walk down rows
        hwy::Prefetch(s.dt + ahead);
        hwy::Prefetch(s.x + ahead);
        keep(hn::Mul(delta.value, load_upto(s.x + t * s.E + first, lanes)), inputs + at);
        slope(at, delta.slope);
        bounded &= hn::AllTrue(F32(), hn::Ge(hn::Mul(delta.value, least), all(-126.0f)));
      }
    }
  }
};

// 2^(a b) for a b in [-126, 0], in the fewest operations: relative error below 3e-7 where the
// target fuses multiplication and addition, exact at 0. e^(x y) is 2^(x (y log2 e)): for a y that
// many x share, the factor costs nothing.
HWY_INLINE V32 exp2_product(V32 a, V32 b) {
  const V32 magic = all(12582912.0f);
  const V32 shifted = hn::MulAdd(a, b, magic);
  const V32 r = hn::MulSub(a, b, hn::Sub(shifted, magic));
  // least relative error over |r| <= 1/2 among polynomials with p(0) = 1, weighted by
  // 1 / max(|r|, 0.3): products of many powers near 1 add errors near r = 0 up
  V32 p = all(0.001326176105067134f);
  p = hn::MulAdd(p, r, all(0.009668934158980846f));
  p = hn::MulAdd(p, r, all(0.05550720542669296f));
  p = hn::MulAdd(p, r, all(0.24022293090820312f));
  p = hn::MulAdd(p, r, all(0.6931470036506653f));
  p = hn::MulAdd(p, r, all(1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(I32(), shifted));
  return hn::BitCast(F32(), hn::Add(hn::BitCast(I32(), p), exponent));
}

// e^(delta A), the same bits whether `bounded` is known or not: A of one lane, which may be beyond
// the bounds, must not reach another
template <bool bounded>
HWY_INLINE V32 decay_of(V32 delta, V32 a_log2e) {
  const V32 power = exp2_product(delta, a_log2e);
  if constexpr (bounded) return power;
  const V32 x = hn::Mul(delta, a_log2e);
  const V32 cut = hn::IfThenZeroElse(hn::Lt(x, all(-126.0f)), power);
  return hn::IfThenElse(hn::Eq(x, x), cut, x);
}

// A log2 e of `blocks` blocks of lanes, [N, blocks, lanes]
template <int blocks>
HWY_INLINE void load_a(const SelectiveScan& s, int64_t c, int64_t count, float* a) {
  for (int64_t n = 0; n < s.N; ++n)
    for (int i = 0; i < blocks; ++i)
      keep(hn::Mul(load_upto(s.A + n * s.E + c + i * kLanes, count - i * kLanes), all(kLog2E)),
           a + (n * blocks + i) * kLanes);
}

// tokens [from, to) of the channels c .. c + count, from and to their state in h [N, blocks, lanes]
template <bool bounded, int blocks>
HWY_INLINE void scan_tokens(const SelectiveScan& s,
                            int64_t c,
                            int64_t count,
                            int64_t from,
                            int64_t to,
                            const Steps<blocks>& steps,
                            const float* a,
                            float* h) {
  V32 skip[blocks];
#pragma GCC unroll 4
  for (int i = 0; i < blocks; ++i)
    skip[i] = s.D ? load_upto(s.D + c + i * kLanes, count - i * kLanes) : zero();
  for (int64_t t = from; t < to; ++t) {
    V32 delta[blocks], input[blocks], y[blocks];
#pragma GCC unroll 4
    for (int i = 0; i < blocks; ++i) {
      const int64_t at = ((t - from) * blocks + i) * kLanes;
      delta[i] = aligned(steps.deltas + at);
      input[i] = aligned(steps.inputs + at);
      y[i] = hn::Mul(skip[i], load_upto(s.x + t * s.E + c + i * kLanes, count - i * kLanes));
    }
    const float* b = s.B + t * s.N;
    const float* out = s.C + t * s.N;
    for (int64_t n = 0; n < s.N; ++n) {
      const V32 bn = all(b[n]), cn = all(out[n]);
#pragma GCC unroll 4
      for (int i = 0; i < blocks; ++i) {
        const int64_t at = (n * blocks + i) * kLanes;
        const V32 decay = decay_of<bounded>(delta[i], aligned(a + at));
        const V32 v = hn::MulAdd(decay, aligned(h + at), hn::Mul(input[i], bn));
        keep(v, h + at);
        y[i] = hn::MulAdd(v, cn, y[i]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < blocks; ++i)
      store_upto(y[i], s.y + t * s.E + c + i * kLanes, count - i * kLanes);
  }
}

template <int blocks>
void scan_chunk(const SelectiveScan& s, int64_t c, int64_t count, int64_t from) {
  const int64_t to = std::min(s.T, from + kQ);
  float* h = scratch<6>(2 * s.N * blocks * kLanes);
  float* a = h + s.N * blocks * kLanes;
  load_a<blocks>(s, c, count, a);
  for (int64_t n = 0; n < s.N; ++n)
    for (int i = 0; i < blocks; ++i) {
      const int64_t at = n * s.E + c + i * kLanes, lanes = count - i * kLanes;
      const V32 v = load_upto(s.state + at, lanes);
      keep(v, h + (n * blocks + i) * kLanes);
      if (s.kept) store_upto(v, s.kept + from / kQ * s.N * s.E + at, lanes);
    }
  Steps<blocks> steps;
  steps.compute(s, c, count, from, to, a, [](int64_t, V32) HWY_ATTR {});
  if (steps.bounded)
    scan_tokens<true>(s, c, count, from, to, steps, a, h);
  else
    scan_tokens<false>(s, c, count, from, to, steps, a, h);
  for (int64_t n = 0; n < s.N; ++n)
    for (int i = 0; i < blocks; ++i)
      store_upto(aligned(h + (n * blocks + i) * kLanes), s.state + n * s.E + c + i * kLanes,
                 count - i * kLanes);
}

// Time outside, channels inside: every line of x, dt and y is used while it is hot.
void scan_channels(const SelectiveScan& s, int64_t begin, int64_t end) {
  for (int64_t from = 0; from < s.T; from += kQ)
    for (int64_t c = begin; c < end; c += kBlocks * kLanes) {
      const int64_t count = std::min(kBlocks * kLanes, end - c);
      if (count > kLanes)
        scan_chunk<kBlocks>(s, c, count, from);
      else
        scan_chunk<1>(s, c, count, from);
    }
}

// What goes on from block to block of lanes: per chunk the sums of dB and dC before their lanes are
// added, [N, kQ, lanes]; per channel what goes on from chunk to chunk, [channels / lanes, N,
// lanes].
struct BackwardWork {
  float *db, *dc, *carry;
  BackwardWork(int64_t n, int64_t blocks) {
    const int64_t chunk = kQ * n * kLanes;
    db = scratch<7>(2 * chunk + blocks * n * kLanes);
    dc = db + chunk;
    carry = dc + chunk;
    std::fill(carry, carry + blocks * n * kLanes, 0.0f);
  }
};

// One chunk of `blocks` blocks of lanes: what all n share, [tokens, blocks, lanes].
template <int blocks>
struct Adjoint {
  Steps<blocks> steps;
  HWY_ALIGN float slopes[kQ * blocks * kLanes];
  HWY_ALIGN float dy[kQ * blocks * kLanes];
  HWY_ALIGN float through_b[kQ * blocks * kLanes];      // sum_n G B
  HWY_ALIGN float through_decay[kQ * blocks * kLanes];  // sum_n G h_{t-1} a A
  // of one n at a time, so that it stays in the first cache level
  HWY_ALIGN float states[(kQ + 1) * blocks * kLanes];  // before the chunk, and after each token
  HWY_ALIGN float decays[kQ * blocks * kLanes];

  // states and decays of n once more
  template <bool bounded>
  HWY_INLINE void replay(
      const SelectiveScan& s, int64_t n, int64_t from, int64_t tokens, const V32 (&a)[blocks]) {
    V32 h[blocks];
#pragma GCC unroll 4
    for (int i = 0; i < blocks; ++i) h[i] = aligned(states + i * kLanes);
    for (int64_t t = 0; t < tokens; ++t) {
      const V32 bn = all(s.B[(from + t) * s.N + n]);
#pragma GCC unroll 4
      for (int i = 0; i < blocks; ++i) {
        const int64_t at = (t * blocks + i) * kLanes;
        const V32 decay = decay_of<bounded>(aligned(steps.deltas + at), a[i]);
        h[i] = hn::MulAdd(decay, h[i], hn::Mul(aligned(steps.inputs + at), bn));
        keep(decay, decays + at);
        keep(h[i], states + at + blocks * kLanes);
      }
    }
  }

  // With G_t = C_t dy_t + a_{t+1} G_{t+1} (the carry holds the second term):
  //   dC_t = sum_e h_t dy_t;  dB_t = sum_e G_t delta_t x_t;  dA = sum_t G_t h_{t-1} a_t delta_t
  HWY_INLINE void reverse(const SelectiveScan& s,
                          int64_t n,
                          int64_t from,
                          int64_t tokens,
                          const V32 (&a)[blocks],
                          V32 (&carry)[blocks],
                          V32 (&da)[blocks],
                          float* db,
                          float* dc) {
    for (int64_t t = tokens - 1; t >= 0; --t) {
      const V32 bn = all(s.B[(from + t) * s.N + n]), cn = all(s.C[(from + t) * s.N + n]);
      V32 b_sum = aligned(db + t * kLanes), c_sum = aligned(dc + t * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < blocks; ++i) {
        const int64_t at = (t * blocks + i) * kLanes;
        const V32 out = aligned(dy + at), grad = hn::MulAdd(cn, out, carry[i]);
        c_sum = hn::MulAdd(aligned(states + at + blocks * kLanes), out, c_sum);
        b_sum = hn::MulAdd(grad, aligned(steps.inputs + at), b_sum);
        keep(hn::MulAdd(grad, bn, aligned(through_b + at)), through_b + at);
        carry[i] = hn::Mul(grad, aligned(decays + at));
        const V32 log_grad = hn::Mul(carry[i], aligned(states + at));
        keep(hn::MulAdd(log_grad, a[i], aligned(through_decay + at)), through_decay + at);
        da[i] = hn::MulAdd(log_grad, aligned(steps.deltas + at), da[i]);
      }
      keep(b_sum, db + t * kLanes);
      keep(c_sum, dc + t * kLanes);
    }
  }

  // dx_t = delta_t sum_n G_t B_t + D dy_t;  ddelta_t = sum_n G_t h_{t-1} a_t A + x_t sum_n G_t B_t
  HWY_INLINE void finish(const SelectiveScanGradient& g,
                         int64_t c,
                         int64_t count,
                         int64_t from,
                         int64_t tokens) const {
    const SelectiveScan& s = g.scan;
    for (int i = 0; i < blocks; ++i) {
      const int64_t first = c + i * kLanes, lanes = count - i * kLanes;
      const V32 skip = s.D ? load_upto(s.D + first, lanes) : zero();
      V32 bias_sum = load_upto(g.ddt_bias + first, lanes);
      V32 skip_sum = g.dD ? load_upto(g.dD + first, lanes) : zero();
      for (int64_t t = tokens - 1; t >= 0; --t) {
        const int64_t at = (t * blocks + i) * kLanes, row = (from + t) * s.E + first;
        const V32 x = load_upto(s.x + row, lanes), out = aligned(dy + at);
        const V32 grad = aligned(through_b + at);
        store_upto(hn::MulAdd(aligned(steps.deltas + at), grad, hn::Mul(skip, out)), g.dx + row,
                   lanes);
        // a carries log2 e
        const V32 ddelta =
            hn::MulAdd(x, grad, hn::Mul(aligned(through_decay + at), all(1 / kLog2E)));
        const V32 ddt = hn::Mul(ddelta, aligned(slopes + at));
        store_upto(ddt, g.ddt + row, lanes);
        bias_sum = hn::Add(bias_sum, ddt);
        skip_sum = hn::MulAdd(x, out, skip_sum);
      }
      store_upto(bias_sum, g.ddt_bias + first, lanes);
      if (g.dD) store_upto(skip_sum, g.dD + first, lanes);
    }
  }
};

// carry: [blocks, N, lanes]
template <int blocks>
void backward_chunk(const SelectiveScanGradient& g,
                    int64_t c,
                    int64_t count,
                    int64_t from,
                    const BackwardWork& work,
                    float* carries) {
  const SelectiveScan& s = g.scan;
  const int64_t tokens = std::min(s.T - from, kQ);
  float* a_data = scratch<8>(s.N * blocks * kLanes);
  load_a<blocks>(s, c, count, a_data);
  Adjoint<blocks> z;
  z.steps.compute(s, c, count, from, from + tokens, a_data,
                  [&](int64_t at, V32 slope) HWY_ATTR { keep(slope, z.slopes + at); });
  for (int64_t t = 0; t < tokens; ++t)
    for (int i = 0; i < blocks; ++i) {
      const int64_t at = (t * blocks + i) * kLanes, lanes = count - i * kLanes;
      keep(load_upto(g.dy + (from + t) * s.E + c + i * kLanes, lanes), z.dy + at);
      keep(zero(), z.through_b + at);
      keep(zero(), z.through_decay + at);
    }
  for (int64_t n = 0; n < s.N; ++n) {
    V32 a[blocks], carry[blocks], da[blocks];
    const auto place = [&](int i) { return n * s.E + c + i * kLanes; };
#pragma GCC unroll 4
    for (int i = 0; i < blocks; ++i) {
      const int64_t lanes = count - i * kLanes;
      a[i] = aligned(a_data + (n * blocks + i) * kLanes);
      carry[i] = aligned(carries + (i * s.N + n) * kLanes);
      da[i] = load_upto(g.dA + place(i), lanes);
      keep(load_upto(s.kept + from / kQ * s.N * s.E + place(i), lanes), z.states + i * kLanes);
    }
    if (z.steps.bounded)
      z.template replay<true>(s, n, from, tokens, a);
    else
      z.template replay<false>(s, n, from, tokens, a);
    z.reverse(s, n, from, tokens, a, carry, da, work.db + n * kQ * kLanes,
              work.dc + n * kQ * kLanes);
#pragma GCC unroll 4
    for (int i = 0; i < blocks; ++i) {
      keep(carry[i], carries + (i * s.N + n) * kLanes);
      store_upto(da[i], g.dA + place(i), count - i * kLanes);
    }
  }
  z.finish(g, c, count, from, tokens);
}

// sums [N, kQ, lanes] over their lanes, to rows [tokens, N]
void add_lanes(const float* sums, int64_t n, int64_t tokens, float* to) {
  const auto row = [&](int64_t t, int64_t i)
                       HWY_ATTR { return aligned(sums + (i * kQ + t) * kLanes); };
  for (int64_t t = 0; t < tokens; ++t, to += n) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
      hn::StoreU(sums_of_4(row(t, i), row(t, i + 1), row(t, i + 2), row(t, i + 3)), F32x4(),
                 to + i);
    for (; i < n; ++i) to[i] = sum_of(row(t, i));
  }
}

void backward_channels(const SelectiveScanGradient& g, int64_t begin, int64_t end) {
  const SelectiveScan& s = g.scan;
  const BackwardWork work(s.N, (end - begin + kLanes - 1) / kLanes);
  for (int64_t from = (s.T + kQ - 1) / kQ * kQ - kQ; from >= 0; from -= kQ) {
    std::fill(work.db, work.db + 2 * kQ * s.N * kLanes, 0.0f);  // and dc
    for (int64_t c = begin; c < end; c += kBlocks * kLanes) {
      const int64_t count = std::min(kBlocks * kLanes, end - c);
      float* carry = work.carry + (c - begin) * s.N;
      if (count > kLanes)
        backward_chunk<kBlocks>(g, c, count, from, work, carry);
      else
        backward_chunk<1>(g, c, count, from, work, carry);
    }
    const int64_t tokens = std::min(s.T - from, kQ);
    add_lanes(work.db, s.N, tokens, g.dB + from * s.N);
    add_lanes(work.dc, s.N, tokens, g.dC + from * s.N);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(scan_channels);
HWY_EXPORT(backward_channels);

void selective_scan(const SelectiveScan& s, int64_t begin, int64_t end) {
  cap_targets();
  HWY_DYNAMIC_DISPATCH(scan_channels)(s, begin, end);
}

void selective_scan(const SelectiveScan& s) {
  // about 2^15 steps of a state are worth a thread; borders on 16 channels keep vectors whole
  constexpr int64_t kBlock = 16;
  const int64_t grain = 1 + (int64_t{1} << 15) / (1 + s.T * s.N * kBlock);
  parallel_for((s.E + kBlock - 1) / kBlock, grain, [&](int64_t begin, int64_t end) {
    selective_scan(s, begin * kBlock, std::min(s.E, end * kBlock));
  });
}

void selective_scan_backward(const SelectiveScanGradient& g, int64_t begin, int64_t end) {
  cap_targets();
  HWY_DYNAMIC_DISPATCH(backward_channels)(g, begin, end);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
