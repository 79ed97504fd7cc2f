// exp, and the activations of activation.h, a vector at a time.
#if defined(TESSERA_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_MATH_INL_H_
#undef TESSERA_KERNELS_MATH_INL_H_
#else
#define TESSERA_KERNELS_MATH_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>

#include "tessera/kernels/activation.h"
#include "tessera/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

/// e^x for x <= 0: 1 ulp; 0 below -104; NaN stays NaN.
HWY_INLINE V32 exp_negative(V32 x) {
  return hn::IfThenElse(hn::Eq(x, x), hn::Exp(F32(), x), x);
}

// x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer, which then lies in
// the low bits.
struct ReducedExponent {
  V32 scale, r;  // 2^n, r
};
HWY_INLINE ReducedExponent reduce_exponent(V32 x) {
  const V32 magic = all(12582912.0f);
  const V32 shifted = hn::MulAdd(x, all(1.44269504f), magic);
  const V32 n = hn::Sub(shifted, magic);
  V32 r = hn::NegMulAdd(n, all(0.693359375f), x);
  r = hn::NegMulAdd(n, all(-2.12194440e-4f), r);
  const auto bits =
      hn::Add(hn::ShiftLeft<23>(hn::BitCast(I32(), shifted)), hn::BitCast(I32(), all(1.0f)));
  return {hn::BitCast(F32(), bits), r};
}

// (e^r - 1) / r for |r| <= ln 2 / 2: the Taylor series to r^5 / 720
HWY_INLINE V32 exp_series(V32 r) {
  V32 p = all(1.0f / 720);
  p = hn::MulAdd(p, r, all(1.0f / 120));
  p = hn::MulAdd(p, r, all(1.0f / 24));
  p = hn::MulAdd(p, r, all(1.0f / 6));
  p = hn::MulAdd(p, r, all(0.5f));
  return hn::MulAdd(p, r, all(1.0f));
}

/// e^x for x <= 0 in fewer operations: relative error below 2e-7; 0 below -87; NaN stays NaN.
HWY_INLINE V32 exp_fast(V32 x) {
  const ReducedExponent e = reduce_exponent(x);
  const V32 power = hn::Mul(hn::MulAdd(exp_series(e.r), e.r, all(1.0f)), e.scale);
  return hn::IfThenZeroElse(hn::Lt(x, all(-87.0f)), power);
}

/// tanh x with a relative error below 5e-7; NaN stays NaN.
HWY_INLINE V32 tanh_fast(V32 x) {
  // tanh |x| = -m / (2 + m) with m = e^{-2|x|} - 1, which is exact near 0; 1 from |x| = 10 on
  const V32 twice = hn::Max(hn::Mul(hn::Abs(x), all(-2.0f)), all(-20.0f));
  const ReducedExponent e = reduce_exponent(twice);
  const V32 m = hn::MulAdd(e.scale, hn::Mul(exp_series(e.r), e.r), hn::Sub(e.scale, all(1.0f)));
  const V32 t = hn::Div(hn::Neg(m), hn::Add(m, all(2.0f)));
  return hn::IfThenElse(hn::Eq(x, x), hn::CopySignToAbs(t, x), x);
}

// A number as a sum of two floats, the second one tiny: exp(high + low) = exp(high) (1 + low) keeps
// its relative accuracy where a single float's rounding of the argument would show.
struct SplitFloat {
  V32 high, low;
};

// f(x) in double, lane by lane, cut off where exp is 0 or infinite anyway: a float must hold it
template <class F>
HWY_INLINE SplitFloat in_double(V32 x, const F& f) {
  const V64 limit = hn::Set(F64(), 1e4);
  const auto cut = [&](V64 v) HWY_ATTR { return hn::Max(hn::Min(v, limit), hn::Neg(limit)); };
  const V64 lower = cut(f(lower_doubles(x)));
  const V64 upper = cut(f(upper_doubles(x)));
  const V32 high = from_doubles(lower, upper);
  const V32 low =
      from_doubles(hn::Sub(lower, lower_doubles(high)), hn::Sub(upper, upper_doubles(high)));
  return {high, low};
}

/// 1 / (1 + e^-x), by e^-|x|, so that small values keep their relative accuracy.
HWY_INLINE V32 sigmoid_of(SplitFloat x) {
  const V32 one = all(1.0f);
  const auto negative = hn::Lt(x.high, zero());
  const V32 minus_magnitude = hn::IfThenElse(negative, x.high, hn::Neg(x.high));
  const V32 low = hn::IfThenElse(negative, x.low, hn::Neg(x.low));
  const V32 e0 = exp_negative(minus_magnitude);
  const V32 e = hn::MulAdd(e0, low, e0);
  return hn::Div(hn::IfThenElse(negative, e, one), hn::Add(one, e));
}

// Phi(-a) e^(a^2/2) = t P(t) with t = 1 / (1 + a/4), a >= 0: least relative error (3.4e-8) over
// t in (0, 1], fitted by reweighted least squares to erfcx(a / sqrt 2) / 2.
HWY_INLINE V32 scaled_normal_tail(V32 a) {
  constexpr float c[] = {0.09973556665002176f, 0.09973643678242528f, 0.09346624985333066f,
                         0.0816040721680572f,  0.05897044659776055f, 0.06371243945920202f,
                         -0.031740111969578f,  0.0956196252891347f,  -0.08088951087351755f,
                         0.019784769137465796f};
  const V32 t = hn::Div(all(1.0f), hn::MulAdd(a, all(0.25f), all(1.0f)));
  V32 p = all(c[9]);
  for (int i = 8; i >= 0; --i) p = hn::MulAdd(p, t, all(c[i]));
  return hn::Mul(p, t);
}

HWY_INLINE V32 gelu_of(V32 x) {
  const SplitFloat s =
      in_double(x, [](V64 v) HWY_ATTR { return hn::Mul(hn::Mul(v, v), hn::Set(F64(), -0.5)); });
  const V32 e0 = exp_negative(s.high);
  const V32 tail = hn::Mul(scaled_normal_tail(hn::Abs(x)), hn::MulAdd(e0, s.low, e0));
  const V32 phi = hn::IfThenElse(hn::Lt(x, zero()), tail, hn::Sub(all(1.0f), tail));
  return hn::Mul(x, phi);
}

template <Activation kind>
HWY_INLINE V32 activate(V32 x) {
  if constexpr (kind == Activation::identity) {
    return x;
  } else if constexpr (kind == Activation::relu) {
    return hn::IfThenElse(hn::Lt(x, zero()), zero(), x);  // unlike Max, keeps NaN
  } else if constexpr (kind == Activation::relu2) {
    const V32 r = hn::IfThenElse(hn::Lt(x, zero()), zero(), x);
    return hn::Mul(r, r);
  } else if constexpr (kind == Activation::silu) {
    return hn::Mul(x, sigmoid_of({x, zero()}));
  } else if constexpr (kind == Activation::sigmoid) {
    return sigmoid_of({x, zero()});
  } else if constexpr (kind == Activation::tanh) {
    return hn::IfThenElse(hn::Eq(x, x), hn::Tanh(F32(), x), x);
  } else if constexpr (kind == Activation::quick_gelu) {
    const auto s = in_double(x, [](V64 v) HWY_ATTR { return hn::Mul(v, hn::Set(F64(), 1.702)); });
    return hn::Mul(x, sigmoid_of(s));
  } else if constexpr (kind == Activation::gelu_tanh) {
    // (1 + tanh u) / 2 = sigmoid(2u)
    constexpr double kTwoRootTwoOverPi = 1.5957691216057307;
    const auto s = in_double(x, [](V64 v) HWY_ATTR {
      const V64 cube = hn::Mul(hn::Mul(v, v), v);
      return hn::Mul(hn::MulAdd(cube, hn::Set(F64(), 0.044715), v),
                     hn::Set(F64(), kTwoRootTwoOverPi));
    });
    return hn::Mul(x, sigmoid_of(s));
  } else {
    return gelu_of(x);
  }
}

/// Calls body.template operator()<kind>() for the run-time kind.
template <class Body>
HWY_INLINE void with_activation(Activation kind, const Body& body) {
  switch (kind) {
    case Activation::identity:
      return body.template operator()<Activation::identity>();
    case Activation::relu:
      return body.template operator()<Activation::relu>();
    case Activation::gelu:
      return body.template operator()<Activation::gelu>();
    case Activation::gelu_tanh:
      return body.template operator()<Activation::gelu_tanh>();
    case Activation::quick_gelu:
      return body.template operator()<Activation::quick_gelu>();
    case Activation::silu:
      return body.template operator()<Activation::silu>();
    case Activation::sigmoid:
      return body.template operator()<Activation::sigmoid>();
    case Activation::relu2:
      return body.template operator()<Activation::relu2>();
    case Activation::tanh:
      return body.template operator()<Activation::tanh>();
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
