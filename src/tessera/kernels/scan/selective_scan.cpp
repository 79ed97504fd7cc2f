#include "tessera/kernels/scan/selective_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/scan/selective_scan.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

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

// lanes of a row that neighbouring blocks of channels share: broadcasts of B and C, sums of dB and
// dC
constexpr int kBlocks = 2;
constexpr float kLog2E = 1.44269504f;

// ln(1 + e^x), and its derivative, by e = e^-|x|
HWY_INLINE V32 softplus_of(V32 x, V32 e) {
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
  V32 p = all(c[8]);
#pragma GCC unroll 8
  for (int i = 7; i >= 0; --i) p = hn::MulAdd(p, e, all(c[i]));
  return hn::MulAdd(p, e, hn::IfThenElse(hn::Lt(x, zero()), zero(), x));
}
HWY_INLINE V32 softplus_slope(V32 x, V32 e) {
  const V32 one = all(1.0f);
  return hn::Div(hn::IfThenElse(hn::Lt(x, zero()), e, one), hn::Add(one, e));
}

// A log2 e of `blocks` blocks of lanes, [N, blocks, lanes], and the least of it over N, [blocks,
// lanes]: NaN if any A is NaN or infinite
template <int blocks>
HWY_INLINE void load_a(const SelectiveScan& s, int64_t c, int64_t count, float* a, float* least) {
  for (int i = 0; i < blocks; ++i) {
    V32 low = zero(), sum = zero();
    for (int64_t n = 0; n < s.N; ++n) {
      const V32 v =
          hn::Mul(load_upto(s.A + n * s.E + c + i * kLanes, count - i * kLanes), all(kLog2E));
      keep(v, a + (n * blocks + i) * kLanes);
      low = hn::Min(low, v);
      sum = hn::Add(sum, v);
    }
    keep(hn::MulAdd(sum, zero(), low), least + i * kLanes);
  }
}

// What does not depend on the state, of one chunk of tokens of `blocks` blocks of lanes; arrays
// [tokens, blocks, lanes].
template <int blocks>
struct Steps {
  HWY_ALIGN float deltas[kQ * blocks * kLanes];
  HWY_ALIGN float inputs[kQ * blocks * kLanes];  // delta x
  bool bounded;                                  // every delta A log2 e is within [-126, 0]

  // how far the lines of the tile after the next one are: no cache sees a walk down rows
  static constexpr int64_t kAhead = 2 * blocks * kLanes;

  // least: of A log2 e, [blocks, lanes]; soon: more rows [T, E] that are read next or, where not
  // const, written; slopes(at, x, e) takes what softplus_slope needs. In two passes: of a chain cut
  // in two, a core looks ahead to more neighbours.
  template <class Float, class Slopes>
  HWY_INLINE void compute(const SelectiveScan& s,
                          int64_t c,
                          int64_t count,
                          int64_t from,
                          int64_t to,
                          const float* least,
                          Float* soon,
                          const Slopes& slopes) {
    auto within = hn::Eq(zero(), zero());
    for (int i = 0; i < blocks; ++i) {
      const int64_t first = c + i * kLanes, lanes = count - i * kLanes;
      const V32 bias = load_upto(s.dt_bias + first, lanes), low = aligned(least + i * kLanes);
      for (int64_t t = from; t < to; ++t) {
        const int64_t at = ((t - from) * blocks + i) * kLanes, row = t * s.E + first;
        const V32 x = hn::Add(load_upto(s.dt + row, lanes), bias);
        hwy::Prefetch(s.dt + row + kAhead);
        keep(x, deltas + at);
        keep(exp_fast(hn::Neg(hn::Abs(x))), inputs + at);
      }
      for (int64_t t = from; t < to; ++t) {
        const int64_t at = ((t - from) * blocks + i) * kLanes, row = t * s.E + first;
        const V32 x = aligned(deltas + at), e = aligned(inputs + at), delta = softplus_of(x, e);
        slopes(at, x, e);
        keep(delta, deltas + at);
        keep(hn::Mul(delta, load_upto(s.x + row, lanes)), inputs + at);
        hwy::Prefetch(s.x + row + kAhead);
        std::is_const_v<Float> ? hwy::Prefetch(soon + row + kAhead)
                               : prefetch_to_write(soon + row + kAhead);
        within = hn::And(within, hn::Ge(hn::Mul(delta, low), all(-126.0f)));
      }
    }
    bounded = hn::AllTrue(F32(), within);
  }
};

// 2^(a b) for a b in [-126, 0], in the fewest operations: relative error below 3e-7 where the
// target fuses multiplication and addition, exact at 0. e^(x y) is 2^(x (y log2 e)): for a y that
// many x share, the factor costs nothing. a: [count / blocks, blocks, lanes]. Each operation for
// all of them before the next one, so that none waits for the one before.
template <int count, int blocks>
HWY_INLINE void exp2_products(const float* a, const V32 (&b)[blocks], V32 (&power)[count]) {
  // least relative error over |r| <= 1/2 among polynomials with p(0) = 1, weighted by
  // 1 / max(|r|, 0.3): products of many powers near 1 add errors near r = 0 up
  constexpr float c[] = {1.0f,
                         0.6931470036506653f,
                         0.24022293090820312f,
                         0.05550720542669296f,
                         0.009668934158980846f,
                         0.001326176105067134f};
  const V32 magic = all(12582912.0f);
  V32 shifted[count], r[count];
  const auto each = [](const auto& body) HWY_ATTR {
#pragma GCC unroll 8
    for (int j = 0; j < count; ++j) body(j);
  };
  const auto value = [&](int j) HWY_ATTR { return aligned(a + j * kLanes); };
  each([&](int j) HWY_ATTR { shifted[j] = hn::MulAdd(value(j), b[j % blocks], magic); });
  each([&](int j) HWY_ATTR { r[j] = hn::Sub(shifted[j], magic); });
  each([&](int j) HWY_ATTR { r[j] = hn::MulSub(value(j), b[j % blocks], r[j]); });
  each([&](int j) HWY_ATTR { power[j] = hn::MulAdd(all(c[5]), r[j], all(c[4])); });
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i)
    each([&](int j) HWY_ATTR { power[j] = hn::MulAdd(power[j], r[j], all(c[i])); });
  each([&](int j) HWY_ATTR {
    const auto exponent = hn::ShiftLeft<23>(hn::BitCast(I32(), shifted[j]));
    power[j] = hn::BitCast(F32(), hn::Add(hn::BitCast(I32(), power[j]), exponent));
  });
}

// e^(delta A), the same bits whether `bounded` is known or not: A of one lane, which may be beyond
// the bounds, must not reach another
template <bool bounded, int count, int blocks>
HWY_INLINE void decays_of(const float* a_log2e, const V32 (&delta)[blocks], V32 (&decay)[count]) {
  exp2_products(a_log2e, delta, decay);
  if constexpr (bounded) return;
#pragma GCC unroll 8
  for (int j = 0; j < count; ++j) {
    const V32 x = hn::Mul(delta[j % blocks], aligned(a_log2e + j * kLanes));
    const V32 cut = hn::IfThenZeroElse(hn::Lt(x, all(-126.0f)), decay[j]);
    decay[j] = hn::IfThenElse(hn::Eq(x, x), cut, x);
  }
}

// `states` of them, of one token, at a and h [states, blocks, lanes]; b and c: [states]
template <bool bounded, int states, int blocks>
HWY_INLINE void update_states(const float* a,
                              float* h,
                              const float* b,
                              const float* c,
                              const V32 (&delta)[blocks],
                              const V32 (&input)[blocks],
                              V32 (&y)[blocks]) {
  constexpr int kCount = states * blocks;
  V32 v[kCount];
  decays_of<bounded>(a, delta, v);
#pragma GCC unroll 8
  for (int j = 0; j < kCount; ++j) {
    const V32 more = hn::Mul(input[j % blocks], all(b[j / blocks]));
    v[j] = hn::MulAdd(v[j], aligned(h + j * kLanes), more);
    keep(v[j], h + j * kLanes);
    y[j % blocks] = hn::MulAdd(v[j], all(c[j / blocks]), y[j % blocks]);
  }
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
  constexpr int kStates = 2;
  const int64_t n = s.N;
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
    const float *b = s.B + t * n, *out = s.C + t * n;
    int64_t k = 0;
    for (; k + kStates <= n; k += kStates) {
      const int64_t at = k * blocks * kLanes;
      update_states<bounded, kStates>(a + at, h + at, b + k, out + k, delta, input, y);
    }
    for (; k < n; ++k) {
      const int64_t at = k * blocks * kLanes;
      update_states<bounded, 1>(a + at, h + at, b + k, out + k, delta, input, y);
    }
#pragma GCC unroll 4
    for (int i = 0; i < blocks; ++i)
      store_upto(y[i], s.y + t * s.E + c + i * kLanes, count - i * kLanes);
  }
}

// The channels c .. c + count in `blocks` blocks of lanes, as long as a call lasts.
template <int blocks>
struct ScanTile {
  const SelectiveScan& s;
  int64_t c, count;
  float *h, *a, *least;  // state and A log2 e, [N, blocks, lanes]; [blocks, lanes]

  static int64_t floats(int64_t n) { return (2 * n + 1) * blocks * kLanes; }
  ScanTile(const SelectiveScan& scan, int64_t first, int64_t channels, float* data)
      : s(scan),
        c(first),
        count(channels),
        h(data),
        a(h + s.N * blocks * kLanes),
        least(a + s.N * blocks * kLanes) {}

  void begin() const {
    load_a<blocks>(s, c, count, a, least);
    for (int64_t n = 0; n < s.N; ++n)
      for (int i = 0; i < blocks; ++i)
        keep(load_upto(s.state + n * s.E + c + i * kLanes, count - i * kLanes),
             h + (n * blocks + i) * kLanes);
  }
  // to: [N, E]
  HWY_INLINE void store_state(float* to) const {
    for (int64_t n = 0; n < s.N; ++n)
      for (int i = 0; i < blocks; ++i)
        store_upto(aligned(h + (n * blocks + i) * kLanes), to + n * s.E + c + i * kLanes,
                   count - i * kLanes);
  }
  void scan_chunk(int64_t from) const {
    const int64_t to = std::min(s.T, from + kQ);
    if (s.kept) store_state(s.kept + from / kQ * s.N * s.E);
    Steps<blocks> steps;
    steps.compute(s, c, count, from, to, least, s.y, [](int64_t, V32, V32) HWY_ATTR {});
    if (steps.bounded)
      scan_tokens<true>(s, c, count, from, to, steps, a, h);
    else
      scan_tokens<false>(s, c, count, from, to, steps, a, h);
  }
};

// Time outside, tiles inside: the lines of a row that belong together are used together.
template <int blocks>
void scan_tiles(const SelectiveScan& s, int64_t begin, int64_t end) {
  constexpr int64_t kWidth = blocks * kLanes;
  float* data = scratch<6>((end - begin + kWidth - 1) / kWidth * ScanTile<blocks>::floats(s.N));
  const auto each = [&](const auto& body) HWY_ATTR {
    float* at = data;
    for (int64_t c = begin; c < end; c += kWidth, at += ScanTile<blocks>::floats(s.N))
      body(ScanTile<blocks>(s, c, std::min(kWidth, end - c), at));
  };
  each([](const auto& tile) HWY_ATTR { tile.begin(); });
  for (int64_t from = 0; from < s.T; from += kQ)
    each([&](const auto& tile) HWY_ATTR { tile.scan_chunk(from); });
  each([&](const auto& tile) HWY_ATTR { tile.store_state(s.state); });
}

void scan_channels(const SelectiveScan& s, int64_t begin, int64_t end) {
  constexpr int64_t kWidth = kBlocks * kLanes;
  const int64_t whole = begin + (end - begin) / kWidth * kWidth;
  scan_tiles<kBlocks>(s, begin, whole);
  scan_tiles<1>(s, whole, end);
}

// Values passed between blocks of lanes: per chunk the sums of dB and dC before their lanes are
// added, [N, kQ, lanes]; per channel those passed between chunks, [channels / lanes, N,
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
      V32 decay[blocks];
      decays_of<bounded>(steps.deltas + t * blocks * kLanes, a, decay);
#pragma GCC unroll 4
      for (int i = 0; i < blocks; ++i) {
        const int64_t at = (t * blocks + i) * kLanes;
        h[i] = hn::MulAdd(decay[i], h[i], hn::Mul(aligned(steps.inputs + at), bn));
        keep(decay[i], decays + at);
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
        prefetch_to_write(g.dx + row + Steps<blocks>::kAhead);
        prefetch_to_write(g.ddt + row + Steps<blocks>::kAhead);
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
  float *a_data = scratch<8>((s.N + 1) * blocks * kLanes), *least = a_data + s.N * blocks * kLanes;
  load_a<blocks>(s, c, count, a_data, least);
  const float* kept = s.kept + from / kQ * s.N * s.E + c;
  for (int64_t n = 0; n < s.N; ++n) {  // each is wanted after a walk over the chunk: too late
    hwy::Prefetch(kept + n * s.E);
    hwy::Prefetch(g.dA + n * s.E + c);
  }
  Adjoint<blocks> z;
  z.steps.compute(s, c, count, from, from + tokens, least, g.dy,
                  [&](int64_t at, V32 x, V32 e)
                      HWY_ATTR { keep(softplus_slope(x, e), z.slopes + at); });
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
      keep(load_upto(kept + n * s.E + i * kLanes, lanes), z.states + i * kLanes);
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

// body(a vector of the state [N, E], how many of it, its place in `carries`) for channels of a tile
template <class Body>
HWY_INLINE void for_carries(
    const SelectiveScan& s, int64_t c, int64_t count, float* carries, const Body& body) {
  for (int64_t i = 0; i * kLanes < count; ++i)
    for (int64_t n = 0; n < s.N; ++n)
      body(n * s.E + c + i * kLanes, count - i * kLanes, carries + (i * s.N + n) * kLanes);
}

void backward_channels(const SelectiveScanGradient& g, int64_t begin, int64_t end) {
  const SelectiveScan& s = g.scan;
  const BackwardWork work(s.N, (end - begin + kLanes - 1) / kLanes);
  const auto for_states = [&](const auto& body) HWY_ATTR {
    for (int64_t c = begin; g.dstate != nullptr && c < end; c += kBlocks * kLanes)
      for_carries(s, c, std::min(kBlocks * kLanes, end - c), work.carry + (c - begin) * s.N, body);
  };
  for_states([&](int64_t at, int64_t lanes, float* carry)
                 HWY_ATTR { keep(load_upto(g.dstate + at, lanes), carry); });
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
  for_states([&](int64_t at, int64_t lanes, float* carry)
                 HWY_ATTR { store_upto(aligned(carry), g.dstate + at, lanes); });
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
