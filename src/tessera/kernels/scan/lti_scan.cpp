#include "tessera/kernels/scan/lti_scan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/scan/lti_scan.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <utility>

#include "tessera/base/threads.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/simd_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

struct Complex {
  V32 re, im;
};

HWY_INLINE Complex at_pair(const float* p, int64_t m, int64_t pairs) {
  return {hn::Load(F32(), p + m * kLanes), hn::Load(F32(), p + (pairs + m) * kLanes)};
}
HWY_INLINE void put_pair(Complex v, float* p, int64_t m, int64_t pairs) {
  hn::Store(v.re, F32(), p + m * kLanes);
  hn::Store(v.im, F32(), p + (pairs + m) * kLanes);
}
// a b + c
HWY_INLINE Complex mul_add(Complex a, Complex b, Complex c) {
  return {hn::NegMulAdd(a.im, b.im, hn::MulAdd(a.re, b.re, c.re)),
          hn::MulAdd(a.im, b.re, hn::MulAdd(a.re, b.im, c.im))};
}
// sum + Re(conj(p) v)
HWY_INLINE V32 dot(Complex p, Complex v, V32 sum) {
  return hn::MulAdd(p.im, v.im, hn::MulAdd(p.re, v.re, sum));
}
// v - f s, s real
HWY_INLINE Complex minus(Complex v, Complex f, V32 s) {
  return {hn::NegMulAdd(f.re, s, v.re), hn::NegMulAdd(f.im, s, v.im)};
}

// channels c .. c + count over all tokens; `work` holds their state and constants, lane by lane
HWY_INLINE void scan_block(const LtiScan& s, int64_t c, int64_t count, float* work) {
  const int64_t m = s.M, size = 2 * m * kLanes;
  const float* arrays[] = {s.state, s.decay, s.out, s.gain, s.row, s.column};
  for (int64_t i = 0; i < 6; ++i)
    if (arrays[i])
      for (int64_t j = 0; j < 2 * m; ++j)
        hn::Store(load_upto(arrays[i] + j * s.H + c, count), F32(), work + i * size + j * kLanes);
  float *x = work, *decay = x + size, *out = decay + size, *gain = out + size, *row = gain + size,
        *column = row + size;
  const V32 skip = load_upto(s.skip + c, count);
  const V32 two = hn::Set(F32(), 2.0f);
  for (int64_t t = 0; t < s.T; ++t) {
    const V32 u = load_upto(s.u + t * s.H + c, count);
    V32 y = zero();
    V32 before = zero();
    if (s.row) {
      for (int64_t i = 0; i < m; ++i) before = dot(at_pair(row, i, m), at_pair(x, i, m), before);
      before = hn::Mul(two, before);
    }
    V32 after = zero();
    for (int64_t i = 0; i < m; ++i) {
      Complex input{u, zero()};
      if (s.gain) {
        const Complex g = at_pair(gain, i, m);
        input = {hn::Mul(g.re, u), hn::Mul(g.im, u)};
      }
      Complex v = mul_add(at_pair(decay, i, m), at_pair(x, i, m), input);
      if (s.row) {
        v = minus(v, at_pair(column, i, m), before);
        after = dot(at_pair(row, i, m), v, after);
      } else {
        const Complex o = at_pair(out, i, m);
        y = hn::NegMulAdd(o.im, v.im, hn::MulAdd(o.re, v.re, y));
      }
      put_pair(v, x, i, m);
    }
    if (s.row) {
      after = hn::Mul(load_upto(s.feedback + c, count), hn::Mul(two, after));
      for (int64_t i = 0; i < m; ++i) {
        const Complex v = minus(at_pair(x, i, m), at_pair(column, i, m), after);
        const Complex o = at_pair(out, i, m);
        y = hn::NegMulAdd(o.im, v.im, hn::MulAdd(o.re, v.re, y));
        put_pair(v, x, i, m);
      }
    }
    store_upto(hn::MulAdd(skip, u, hn::Mul(two, y)), s.y + t * s.H + c, count);
  }
  for (int64_t j = 0; j < 2 * m; ++j)
    store_upto(hn::Load(F32(), x + j * kLanes), s.state + j * s.H + c, count);
}

void scan_channels(const LtiScan& s, int64_t begin, int64_t end) {
  float* work = scratch<9>(12 * s.M * kLanes);
  for (int64_t c = begin; c < end; c += kLanes)
    scan_block(s, c, std::min<int64_t>(kLanes, end - c), work);
}

// as scan_block
HWY_INLINE void dense_block(const DenseLtiScan& s, int64_t c, int64_t count, float* work) {
  const int64_t n = s.N;
  const auto gather = [&](const float* from, int64_t rows, float* to) {
    for (int64_t j = 0; j < rows; ++j)
      hn::Store(load_upto(from + j * s.H + c, count), F32(), to + j * kLanes);
    return to + rows * kLanes;
  };
  float *matrix = work, *gain = gather(s.matrix, n * n, matrix), *out = gather(s.gain, n, gain),
        *x = gather(s.out, n, out), *next = gather(s.state, n, x);
  const V32 skip = load_upto(s.skip + c, count);
  for (int64_t t = 0; t < s.T; ++t) {
    const V32 u = load_upto(s.u + t * s.H + c, count);
    V32 y = hn::Mul(skip, u);
    for (int64_t i = 0; i < n; i += 2) {  // two sums at once hide half of the latency
      const float *first = matrix + i * n * kLanes, *second = first + n * kLanes;
      V32 a = hn::Mul(hn::Load(F32(), gain + i * kLanes), u),
          b = hn::Mul(hn::Load(F32(), gain + (i + 1) * kLanes), u);
      for (int64_t j = 0; j < n; ++j) {
        const V32 v = hn::Load(F32(), x + j * kLanes);
        a = hn::MulAdd(hn::Load(F32(), first + j * kLanes), v, a);
        b = hn::MulAdd(hn::Load(F32(), second + j * kLanes), v, b);
      }
      hn::Store(a, F32(), next + i * kLanes);
      hn::Store(b, F32(), next + (i + 1) * kLanes);
      y = hn::MulAdd(hn::Load(F32(), out + i * kLanes), a, y);
      y = hn::MulAdd(hn::Load(F32(), out + (i + 1) * kLanes), b, y);
    }
    std::swap(x, next);
    store_upto(y, s.y + t * s.H + c, count);
  }
  for (int64_t j = 0; j < n; ++j)
    store_upto(hn::Load(F32(), x + j * kLanes), s.state + j * s.H + c, count);
}

void dense_channels(const DenseLtiScan& s, int64_t begin, int64_t end) {
  float* work = scratch<9>((s.N + 4) * s.N * kLanes);
  for (int64_t c = begin; c < end; c += kLanes)
    dense_block(s, c, std::min<int64_t>(kLanes, end - c), work);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(scan_channels);
HWY_EXPORT(dense_channels);

namespace {

/// body(first channel, last channel) in parallel; `steps` is the work of one channel.
template <class F>
void for_channels(int64_t channels, int64_t steps, const F& body) {
  cap_targets();
  // borders on 16 channels keep vectors whole
  constexpr int64_t kBlock = 16;
  const int64_t grain = 1 + (int64_t{1} << 14) / (1 + steps * kBlock);
  parallel_for((channels + kBlock - 1) / kBlock, grain, [&](int64_t begin, int64_t end) {
    body(begin * kBlock, std::min(channels, end * kBlock));
  });
}

}  // namespace

void lti_scan(const LtiScan& s) {
  for_channels(s.H, s.T * s.M, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(scan_channels)(s, begin, end);
  });
}

void dense_lti_scan(const DenseLtiScan& s) {
  for_channels(s.H, s.T * s.N * s.N, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(dense_channels)(s, begin, end);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
