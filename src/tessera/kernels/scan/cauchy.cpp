#include "tessera/kernels/scan/cauchy.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/scan/cauchy.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "tessera/base/threads.h"
#include "tessera/kernels/simd_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

constexpr int64_t kPoints = kLanes / 2;  // at a time, one a lane

struct ComplexDoubles {
  V64 re, im;
};

HWY_INLINE V64 set(double x) {
  return hn::Set(F64(), x);
}
HWY_INLINE ComplexDoubles plus(ComplexDoubles a, ComplexDoubles b) {
  return {hn::Add(a.re, b.re), hn::Add(a.im, b.im)};
}
HWY_INLINE ComplexDoubles times(ComplexDoubles a, ComplexDoubles b) {
  return {hn::NegMulAdd(a.im, b.im, hn::Mul(a.re, b.re)),
          hn::MulAdd(a.im, b.re, hn::Mul(a.re, b.im))};
}

// n of the points; lanes beyond them repeat the last one
HWY_INLINE ComplexDoubles read(const double* p, int64_t n) {
  HWY_ALIGN double held[2 * kPoints];
  if (n < kPoints) {
    for (int64_t i = 0; i < kPoints; ++i) std::copy_n(p + 2 * std::min(i, n - 1), 2, held + 2 * i);
    p = held;
  }
  ComplexDoubles out;
  hn::LoadInterleaved2(F64(), p, out.re, out.im);
  return out;
}
HWY_INLINE void write(ComplexDoubles x, double* p, int64_t n) {
  if (n >= kPoints) return hn::StoreInterleaved2(x.re, x.im, F64(), p);
  HWY_ALIGN double held[2 * kPoints];
  hn::StoreInterleaved2(x.re, x.im, F64(), held);
  std::copy_n(held, 2 * n, p);
}

// 1 / ((z - lambda) (z - conj(lambda))) = 1 / (z^2 - 2 Re(lambda) z + |lambda|^2)
HWY_INLINE ComplexDoubles pair_reciprocal(ComplexDoubles z,
                                          ComplexDoubles z_squared,
                                          double re,
                                          double im) {
  const V64 twice = set(2 * re);
  const ComplexDoubles q{hn::NegMulAdd(twice, z.re, hn::Add(z_squared.re, set(re * re + im * im))),
                         hn::NegMulAdd(twice, z.im, z_squared.im)};
  const V64 inverse = hn::Div(set(1), hn::MulAdd(q.re, q.re, hn::Mul(q.im, q.im)));
  return {hn::Mul(q.re, inverse), hn::Neg(hn::Mul(q.im, inverse))};
}

// w / (z - lambda) + conj(w) / (z - conj(lambda)) = (2 Re(w) z - 2 Re(w conj(lambda))) r, r as
// above
void sums_of_channel(const CauchySums& in, int64_t h, double* sums) {
  const double* poles = in.poles + h * in.M * 2;
  const double* weights = in.weights + h * kCauchyWeights * in.M * 2;
  // 2 Re(w) and 2 Re(w conj(lambda)) of every sum, pair by pair
  std::vector<double> factors;
  for (int64_t m = 0; m < in.M; ++m)
    for (int64_t k = 0; k < kCauchyWeights; ++k) {
      const double *w = weights + (k * in.M + m) * 2, *pole = poles + 2 * m;
      factors.push_back(2 * w[0]);
      factors.push_back(2 * (w[0] * pole[0] + w[1] * pole[1]));
    }
  for (int64_t l = 0; l < in.L; l += kPoints) {
    const int64_t n = std::min(kPoints, in.L - l);
    const ComplexDoubles z = read(in.points + (h * in.L + l) * 2, n), z_squared = times(z, z);
    ComplexDoubles first[kCauchyWeights], second[kCauchyWeights];
    for (int64_t k = 0; k < kCauchyWeights; ++k)
      first[k] = second[k] = {hn::Zero(F64()), hn::Zero(F64())};
    for (int64_t m = 0; m < in.M; ++m) {
      const ComplexDoubles r = pair_reciprocal(z, z_squared, poles[2 * m], poles[2 * m + 1]);
      const double* of_pair = factors.data() + m * kCauchyWeights * 2;
#pragma GCC unroll 4
      for (int64_t k = 0; k < kCauchyWeights; ++k) {
        const V64 a = set(of_pair[2 * k]), b = set(of_pair[2 * k + 1]);
        first[k] = {hn::MulAdd(a, r.re, first[k].re), hn::MulAdd(a, r.im, first[k].im)};
        second[k] = {hn::MulAdd(b, r.re, second[k].re), hn::MulAdd(b, r.im, second[k].im)};
      }
    }
    for (int64_t k = 0; k < kCauchyWeights; ++k) {
      const ComplexDoubles grown = times(z, first[k]);
      write({hn::Sub(grown.re, second[k].re), hn::Sub(grown.im, second[k].im)},
            sums + ((h * kCauchyWeights + k) * in.L + l) * 2, n);
    }
  }
}

// With n = 1 / (z - lambda), f = 1 / (z - conj(lambda)), G the sums' gradients:
//   dw_k = sum_z G_k conj(n) + conj(G_k) f
//   P = n^2 sum_k conj(G_k) w_k,  Q = f^2 sum_k conj(G_k) conj(w_k)
//   dlambda = sum_z conj(P) + Q,  dz = - sum_m conj(P + Q)
void gradients_of_channel(const CauchySums& in, const CauchyGradients& g, int64_t h) {
  double* d_points = g.d_points + h * in.L * 2;
  std::fill_n(d_points, in.L * 2, 0.0);
  for (int64_t m = 0; m < in.M; ++m) {
    const double* pole = in.poles + (h * in.M + m) * 2;
    const auto pair_of = [&](auto* of_weights, int64_t k) {
      return of_weights + ((h * kCauchyWeights + k) * in.M + m) * 2;
    };
    ComplexDoubles d_weight[kCauchyWeights], d_pole{hn::Zero(F64()), hn::Zero(F64())};
    for (ComplexDoubles& d : d_weight) d = d_pole;
    for (int64_t l = 0; l < in.L; l += kPoints) {
      const int64_t n = std::min(kPoints, in.L - l);
      const ComplexDoubles z = read(in.points + (h * in.L + l) * 2, n);
      const ComplexDoubles r = pair_reciprocal(z, times(z, z), pole[0], pole[1]);
      const V64 re = hn::Sub(z.re, set(pole[0])), im = set(pole[1]);
      const ComplexDoubles near = times({re, hn::Add(z.im, im)}, r),
                           far = times({re, hn::Sub(z.im, im)}, r);
      // the real and imaginary parts of G by those of w
      V64 rr = hn::Zero(F64()), ii = rr, ri = rr, ir = rr;
#pragma GCC unroll 4
      for (int64_t k = 0; k < kCauchyWeights; ++k) {
        const double* w = pair_of(in.weights, k);
        ComplexDoubles d = read(g.d_sums + ((h * kCauchyWeights + k) * in.L + l) * 2, n);
        if (n < kPoints) {
          const auto there = hn::FirstN(F64(), static_cast<size_t>(n));
          d = {hn::IfThenElseZero(there, d.re), hn::IfThenElseZero(there, d.im)};
        }
        d_weight[k].re = hn::MulAdd(d.re, hn::Add(near.re, far.re),
                                    hn::MulAdd(d.im, hn::Add(near.im, far.im), d_weight[k].re));
        d_weight[k].im = hn::MulAdd(d.im, hn::Sub(near.re, far.re),
                                    hn::MulAdd(d.re, hn::Sub(far.im, near.im), d_weight[k].im));
        rr = hn::MulAdd(d.re, set(w[0]), rr);
        ii = hn::MulAdd(d.im, set(w[1]), ii);
        ri = hn::MulAdd(d.re, set(w[1]), ri);
        ir = hn::MulAdd(d.im, set(w[0]), ir);
      }
      const ComplexDoubles p = times(times(near, near), {hn::Add(rr, ii), hn::Sub(ri, ir)}),
                           q = times(times(far, far), {hn::Sub(rr, ii), hn::Neg(hn::Add(ri, ir))});
      d_pole = plus(d_pole, {hn::Add(p.re, q.re), hn::Sub(q.im, p.im)});
      const ComplexDoubles before = read(d_points + 2 * l, n);
      write({hn::Sub(before.re, hn::Add(p.re, q.re)), hn::Add(before.im, hn::Add(p.im, q.im))},
            d_points + 2 * l, n);
    }
    const auto sum_up = [](ComplexDoubles x, double* to) {
      to[0] = sum_of_doubles(x.re), to[1] = sum_of_doubles(x.im);
    };
    for (int64_t k = 0; k < kCauchyWeights; ++k) sum_up(d_weight[k], pair_of(g.d_weights, k));
    sum_up(d_pole, g.d_poles + (h * in.M + m) * 2);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(sums_of_channel);
HWY_EXPORT(gradients_of_channel);

void cauchy_sums(const CauchySums& in, double* sums) {
  cap_targets();
  parallel_for(in.H, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) HWY_DYNAMIC_DISPATCH(sums_of_channel)(in, h, sums);
  });
}

void cauchy_gradients(const CauchySums& in, const CauchyGradients& gradients) {
  cap_targets();
  parallel_for(in.H, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h)
      HWY_DYNAMIC_DISPATCH(gradients_of_channel)(in, gradients, h);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
