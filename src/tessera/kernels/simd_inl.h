// Per-target helpers of the kernels: partial loads and stores, and the one horizontal sum.
// Included once per target by sources that use hwy/foreach_target.h, hence the toggling guard.
#if defined(TESSERA_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_SIMD_INL_H_
#undef TESSERA_KERNELS_SIMD_INL_H_
#else
#define TESSERA_KERNELS_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using F64 = hn::Repartition<double, F32>;
using V32 = hn::Vec<F32>;
using V64 = hn::Vec<F64>;
using F32x4 = hn::CappedTag<float, 4>;
constexpr int64_t kLanes = HWY_MAX_BYTES / 4;

HWY_INLINE V32 zero() {
  return hn::Zero(F32());
}
HWY_INLINE V32 all(float value) {
  return hn::Set(F32(), value);
}
HWY_INLINE V32 load(const float* p) {
  return hn::LoadU(F32(), p);
}
HWY_INLINE void store(V32 v, float* p) {
  hn::StoreU(v, F32(), p);
}

/// Asks for a cache line that will be written: to be owned, which one that was asked for to be read
/// is not yet where cores share a cache.
HWY_INLINE void prefetch_to_write(const float* p) {
#if HWY_ARCH_X86
  asm volatile("prefetchw %0" : : "m"(*p));
#else
  __builtin_prefetch(p, 1);
#endif
}

/// The first n < kLanes values at p, zeros above; reads nothing beyond them.
HWY_INLINE V32 load_part(const float* p, int64_t n) {
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN float buffer[kLanes] = {};
  std::memcpy(buffer, p, static_cast<size_t>(n) * sizeof(float));
  return hn::Load(F32(), buffer);
#else
  return hn::MaskedLoad(hn::FirstN(F32(), static_cast<size_t>(n)), F32(), p);
#endif
}

HWY_INLINE void store_part(V32 v, float* p, int64_t n) {
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN float buffer[kLanes];
  hn::Store(v, F32(), buffer);
  std::memcpy(p, buffer, static_cast<size_t>(n) * sizeof(float));
#else
  hn::BlendedStore(v, hn::FirstN(F32(), static_cast<size_t>(n)), F32(), p);
#endif
}

/// load_part and store_part for any n up to kLanes.
HWY_INLINE V32 load_upto(const float* p, int64_t n) {
  return n >= kLanes ? load(p) : load_part(p, n);
}
HWY_INLINE void store_upto(V32 v, float* p, int64_t n) {
  if (n >= kLanes) return store(v, p);
  store_part(v, p, n);
}

/// Adds the upper half of a vector to its lower one until four lanes are left.
HWY_INLINE hn::Vec<F32x4> fold_to_4(V32 v) {
#if HWY_MAX_BYTES == 64
  const hn::Half<F32> d8;
  const hn::Half<hn::Half<F32>> d4;
  const auto v8 = hn::Add(hn::LowerHalf(d8, v), hn::UpperHalf(d8, v));
  return hn::Add(hn::LowerHalf(d4, v8), hn::UpperHalf(d4, v8));
#elif HWY_MAX_BYTES == 32
  const hn::Half<F32> d4;
  return hn::Add(hn::LowerHalf(d4, v), hn::UpperHalf(d4, v));
#else
  return v;
#endif
}

/// The sums of four vectors' lanes. Each is formed in the same order, whatever the others hold:
/// the only horizontal sum of the layer, so that one dot product has one value.
HWY_INLINE hn::Vec<F32x4> sums_of_4(V32 a, V32 b, V32 c, V32 d) {
  const F32x4 d4;
  const auto a4 = fold_to_4(a);
  const auto b4 = fold_to_4(b);
  const auto c4 = fold_to_4(c);
  const auto e4 = fold_to_4(d);
  const auto ab = hn::Add(hn::ConcatEven(d4, b4, a4), hn::ConcatOdd(d4, b4, a4));
  const auto ce = hn::Add(hn::ConcatEven(d4, e4, c4), hn::ConcatOdd(d4, e4, c4));
  return hn::Add(hn::ConcatEven(d4, ce, ab), hn::ConcatOdd(d4, ce, ab));
}

// four numbers after another, `step` floats apart
template <class D, class V>
HWY_INLINE void store_fours(D d, V v, float* to, int64_t step) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    store_fours(half, hn::LowerHalf(half, v), to, step);
    store_fours(half, hn::UpperHalf(half, v), to + hn::MaxLanes(half) / 4 * step, step);
  }
}

/// to[c * to_row + i] = from[i * row + c] for four rows i and the columns c of a vector of D.
template <class D>
HWY_INLINE void transpose_four_rows(
    D d, const float* from, int64_t row, float* to, int64_t to_row) {
  const auto a = hn::LoadU(d, from), b = hn::LoadU(d, from + row), c = hn::LoadU(d, from + 2 * row),
             e = hn::LoadU(d, from + 3 * row);
  // each block of four columns separately
  const auto ac = hn::InterleaveLower(d, a, c), be = hn::InterleaveLower(d, b, e);
  const auto ac2 = hn::InterleaveUpper(d, a, c), be2 = hn::InterleaveUpper(d, b, e);
  store_fours(d, hn::InterleaveLower(d, ac, be), to, 4 * to_row);
  store_fours(d, hn::InterleaveUpper(d, ac, be), to + to_row, 4 * to_row);
  store_fours(d, hn::InterleaveLower(d, ac2, be2), to + 2 * to_row, 4 * to_row);
  store_fours(d, hn::InterleaveUpper(d, ac2, be2), to + 3 * to_row, 4 * to_row);
}

/// The same for `columns` of them.
HWY_INLINE void transpose_four_rows(
    const float* from, int64_t row, int64_t columns, float* to, int64_t to_row) {
  int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes)
    transpose_four_rows(F32(), from + c, row, to + c * to_row, to_row);
  for (; c + 4 <= columns; c += 4)
    transpose_four_rows(F32x4(), from + c, row, to + c * to_row, to_row);
  for (; c < columns; ++c)
    for (int64_t i = 0; i < 4; ++i) to[c * to_row + i] = from[i * row + c];
}

HWY_INLINE float sum_of(V32 v) {
  return hn::GetLane(sums_of_4(v, v, v, v));
}

/// a . b
HWY_INLINE float dot(const float* a, const float* b, int64_t n) {
  V32 even = zero(), odd = zero();
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    even = hn::MulAdd(load(a + i), load(b + i), even);
    odd = hn::MulAdd(load(a + i + kLanes), load(b + i + kLanes), odd);
  }
  for (; i < n; i += kLanes)
    even = hn::MulAdd(load_upto(a + i, n - i), load_upto(b + i, n - i), even);
  return sum_of(hn::Add(even, odd));
}

/// The sum of double lanes, from the first to the last.
HWY_INLINE double sum_of_doubles(V64 v) {
  HWY_ALIGN double lanes[kLanes / 2];
  hn::Store(v, F64(), lanes);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

HWY_INLINE V64 lower_doubles(V32 v) {
  return hn::PromoteTo(F64(), hn::LowerHalf(hn::Half<F32>(), v));
}
HWY_INLINE V64 upper_doubles(V32 v) {
  return hn::PromoteTo(F64(), hn::UpperHalf(hn::Half<F32>(), v));
}
HWY_INLINE V32 from_doubles(V64 lower, V64 upper) {
  const hn::Half<F32> dh;
  return hn::Combine(F32(), hn::DemoteTo(dh, upper), hn::DemoteTo(dh, lower));
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
