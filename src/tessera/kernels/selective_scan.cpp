#include "tessera/kernels/selective_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/selective_scan.cpp"
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

constexpr int64_t kQ = kSelectiveScanChunk;

HWY_INLINE V32 aligned(const float* p) {
  return hn::Load(F32(), p);
}
HWY_INLINE void keep(V32 v, float* p) {
  hn::Store(v, F32(), p);
}

// ln(1 + e^x)
HWY_INLINE V32 softplus_of(V32 x) {
  const V32 e = exp_negative(hn::Neg(hn::Abs(x)));
  return hn::Add(hn::Max(x, zero()), hn::Log1p(F32(), e));
}

// tokens [from, to) of the channels c .. c + count, from and to their state in `h` [N, lanes]
HWY_INLINE void scan_tokens(
    const SelectiveScan& s, int64_t c, int64_t count, int64_t from, int64_t to, float* h) {
  const float* a = h + s.N * kLanes;
  const V32 bias = load_upto(s.dt_bias + c, count);
  const V32 skip = s.D ? load_upto(s.D + c, count) : zero();
  for (int64_t t = from; t < to; ++t) {
    const V32 x = load_upto(s.x + t * s.E + c, count);
    const V32 delta = softplus_of(hn::Add(load_upto(s.dt + t * s.E + c, count), bias));
    const V32 input = hn::Mul(delta, x);
    const float* b = s.B + t * s.N;
    const float* out = s.C + t * s.N;
    V32 y = hn::Mul(skip, x);
    for (int64_t n = 0; n < s.N; ++n) {
      const V32 decay = exp_fast(hn::Mul(delta, aligned(a + n * kLanes)));
      const V32 v = hn::MulAdd(decay, aligned(h + n * kLanes), hn::Mul(input, all(b[n])));
      keep(v, h + n * kLanes);
      y = hn::MulAdd(v, all(out[n]), y);
    }
    store_upto(y, s.y + t * s.E + c, count);
  }
}

// Time outside, channels inside: every line of x, dt and y is used while it is hot.
void scan_channels(const SelectiveScan& s, int64_t begin, int64_t end) {
  float* h = scratch<6>(2 * s.N * kLanes);  // a block's state, then its A
  for (int64_t from = 0; from < s.T; from += kQ)
    for (int64_t c = begin; c < end; c += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, end - c);
      for (int64_t n = 0; n < s.N; ++n) {
        const V32 v = load_upto(s.state + n * s.E + c, count);
        keep(v, h + n * kLanes);
        keep(load_upto(s.A + n * s.E + c, count), h + (s.N + n) * kLanes);
        if (s.kept) store_upto(v, s.kept + (from / kQ * s.N + n) * s.E + c, count);
      }
      scan_tokens(s, c, count, from, std::min(s.T, from + kQ), h);
      for (int64_t n = 0; n < s.N; ++n)
        store_upto(aligned(h + n * kLanes), s.state + n * s.E + c, count);
    }
}

// Work memory of the backward pass for channels [begin, end): per chunk the states before each
// token, the decays, and the sums of dB and dC before their lanes are added; per block of lanes
// what goes on from chunk to chunk.
struct BackwardWork {
  float *states, *decays, *db, *dc, *carry;
  BackwardWork(int64_t n, int64_t blocks) {
    const int64_t chunk = kQ * n * kLanes;
    states = scratch<7>(4 * chunk + blocks * n * kLanes);
    decays = states + chunk;
    db = decays + chunk;
    dc = db + chunk;
    carry = dc + chunk;
    std::fill(carry, carry + blocks * n * kLanes, 0.0f);
  }
};

// the chunk's states and decays once more
HWY_INLINE void replay(const SelectiveScanGradient& g,
                       int64_t c,
                       int64_t count,
                       int64_t from,
                       int64_t to,
                       const BackwardWork& work) {
  const SelectiveScan& s = g.scan;
  HWY_ALIGN float deltas[kQ * kLanes];
  HWY_ALIGN float inputs[kQ * kLanes];
  const V32 bias = load_upto(s.dt_bias + c, count);
  for (int64_t t = from; t < to; ++t) {
    const V32 delta = softplus_of(hn::Add(load_upto(s.dt + t * s.E + c, count), bias));
    keep(delta, deltas + (t - from) * kLanes);
    keep(hn::Mul(delta, load_upto(s.x + t * s.E + c, count)), inputs + (t - from) * kLanes);
  }
  for (int64_t n = 0; n < s.N; ++n) {
    const V32 a = load_upto(s.A + n * s.E + c, count);
    V32 h = load_upto(s.kept + (from / kQ * s.N + n) * s.E + c, count);
    for (int64_t t = from; t < to; ++t) {
      const int64_t at = ((t - from) * s.N + n) * kLanes;
      const V32 decay = exp_fast(hn::Mul(aligned(deltas + (t - from) * kLanes), a));
      keep(h, work.states + at);
      keep(decay, work.decays + at);
      const V32 input = aligned(inputs + (t - from) * kLanes);
      h = hn::MulAdd(decay, h, hn::Mul(input, all(s.B[t * s.N + n])));
    }
  }
}

// With G_t = C_t dy_t + a_{t+1} G_{t+1} (the carry holds the second term):
//   dC_t = sum_e h_t dy_t;  dB_t = sum_e G_t delta_t x_t;  dx_t = delta_t sum_n G_t B_t + D dy_t
//   ddelta_t = sum_n G_t h_{t-1} a_t A + x_t sum_n G_t B_t;  dA = sum_t G_t h_{t-1} a_t delta_t
HWY_INLINE void adjoint(const SelectiveScanGradient& g,
                        int64_t c,
                        int64_t count,
                        int64_t from,
                        int64_t to,
                        const BackwardWork& work,
                        float* carry,
                        float* da) {
  const SelectiveScan& s = g.scan;
  const V32 bias = load_upto(s.dt_bias + c, count);
  const V32 skip = s.D ? load_upto(s.D + c, count) : zero();
  V32 bias_sum = load_upto(g.ddt_bias + c, count);
  V32 skip_sum = g.dD ? load_upto(g.dD + c, count) : zero();
  for (int64_t t = to - 1; t >= from; --t) {
    const V32 x = load_upto(s.x + t * s.E + c, count);
    const V32 dy = load_upto(g.dy + t * s.E + c, count);
    const V32 raw = hn::Add(load_upto(s.dt + t * s.E + c, count), bias);
    const V32 delta = softplus_of(raw);
    const V32 input = hn::Mul(delta, x);
    const float* b = s.B + t * s.N;
    const float* out = s.C + t * s.N;
    V32 through_b = zero();      // sum_n G B
    V32 through_decay = zero();  // sum_n G h_{t-1} a A
    for (int64_t n = 0; n < s.N; ++n) {
      const int64_t at = ((t - from) * s.N + n) * kLanes;
      const V32 before = aligned(work.states + at);
      const V32 decay = aligned(work.decays + at);
      const V32 bn = all(b[n]);
      const V32 grad = hn::MulAdd(all(out[n]), dy, aligned(carry + n * kLanes));
      const V32 after = hn::MulAdd(decay, before, hn::Mul(input, bn));
      keep(hn::MulAdd(after, dy, aligned(work.dc + at)), work.dc + at);
      keep(hn::MulAdd(grad, input, aligned(work.db + at)), work.db + at);
      through_b = hn::MulAdd(grad, bn, through_b);
      const V32 decayed = hn::Mul(grad, decay);
      const V32 log_grad = hn::Mul(decayed, before);
      through_decay = hn::MulAdd(log_grad, load_upto(s.A + n * s.E + c, count), through_decay);
      keep(hn::MulAdd(log_grad, delta, aligned(da + n * kLanes)), da + n * kLanes);
      keep(decayed, carry + n * kLanes);
    }
    store_upto(hn::MulAdd(delta, through_b, hn::Mul(skip, dy)), g.dx + t * s.E + c, count);
    const V32 ddt = hn::Mul(hn::MulAdd(x, through_b, through_decay), sigmoid_of({raw, zero()}));
    store_upto(ddt, g.ddt + t * s.E + c, count);
    bias_sum = hn::Add(bias_sum, ddt);
    skip_sum = hn::MulAdd(x, dy, skip_sum);
  }
  store_upto(bias_sum, g.ddt_bias + c, count);
  if (g.dD) store_upto(skip_sum, g.dD + c, count);
}

void backward_channels(const SelectiveScanGradient& g, int64_t begin, int64_t end) {
  const SelectiveScan& s = g.scan;
  const BackwardWork work(s.N, (end - begin + kLanes - 1) / kLanes);
  float* da = scratch<8>(s.N * kLanes);
  for (int64_t from = (s.T + kQ - 1) / kQ * kQ - kQ; from >= 0; from -= kQ) {
    const int64_t to = std::min(s.T, from + kQ);
    const int64_t sums = (to - from) * s.N;
    std::fill(work.db, work.db + sums * kLanes, 0.0f);
    std::fill(work.dc, work.dc + sums * kLanes, 0.0f);
    for (int64_t c = begin; c < end; c += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, end - c);
      replay(g, c, count, from, to, work);
      for (int64_t n = 0; n < s.N; ++n) keep(load_upto(g.dA + n * s.E + c, count), da + n * kLanes);
      adjoint(g, c, count, from, to, work, work.carry + (c - begin) / kLanes * s.N * kLanes, da);
      for (int64_t n = 0; n < s.N; ++n)
        store_upto(aligned(da + n * kLanes), g.dA + n * s.E + c, count);
    }
    for (int64_t i = 0; i < sums; ++i) {
      g.dB[from * s.N + i] = sum_of(aligned(work.db + i * kLanes));
      g.dC[from * s.N + i] = sum_of(aligned(work.dc + i * kLanes));
    }
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
