// Weights in blocks as products of integers read them: the scales of several rows next to each
// other (digits.cpp, digit_tiles.cpp).
#if defined(TESSERA_KERNELS_DIGITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_DIGITS_INL_H_
#undef TESSERA_KERNELS_DIGITS_INL_H_
#else
#define TESSERA_KERNELS_DIGITS_INL_H_
#endif

#include <type_traits>

#include "tessera/kernels/weights/blocks_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

using F8 = hn::CappedTag<float, 8>;
using I8x = hn::RebindToSigned<F8>;
using VF = hn::Vec<F8>;
using VX = hn::Vec<I8x>;
constexpr int kSide = static_cast<int>(hn::MaxLanes(F8()));  // columns at once

HWY_INLINE uint16_t half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}

// The halves at `at` of kSide blocks as floats; those after them in `next` if `pairs`.
template <bool pairs>
HWY_INLINE VF halves_at(const uint8_t* const (&w)[kSide], int at, VF& next) {
#if HWY_TARGET <= HWY_AVX2
  if constexpr (pairs) {
    const auto two = [&](int r) HWY_ATTR { return static_cast<int>(word_at(w[r] + at)); };
    const auto a = _mm256_cvtph_ps(_mm_set_epi32(two(5), two(4), two(1), two(0)));
    const auto b = _mm256_cvtph_ps(_mm_set_epi32(two(7), two(6), two(3), two(2)));
    next = VF{_mm256_shuffle_ps(a, b, 0xdd)};
    return VF{_mm256_shuffle_ps(a, b, 0x88)};
  } else {
    const auto h = [&](int r) HWY_ATTR { return static_cast<short>(half_at(w[r] + at)); };
    return VF{_mm256_cvtph_ps(_mm_set_epi16(h(7), h(6), h(5), h(4), h(3), h(2), h(1), h(0)))};
  }
#else
  HWY_ALIGN float first[kSide], second[kSide];
  for (int r = 0; r < kSide; ++r) {
    first[r] = f16_to_float(half_at(w[r] + at));
    if (pairs) second[r] = f16_to_float(half_at(w[r] + at + 2));
  }
  if (pairs) next = hn::Load(F8(), second);
  return hn::Load(F8(), first);
#endif
}

// d and m of the runs of kSide blocks.
template <class Block>
class SideFactors {
 public:
  explicit HWY_INLINE SideFactors(const uint8_t* const (&w)[kSide]) {
    if constexpr (std::is_same_v<Block, MxFp4>) {
      HWY_ALIGN float ds[kSide];
      for (int r = 0; r < kSide; ++r) ds[r] = half_of_e8m0(w[r][0]);
      d_ = hn::Load(F8(), ds);
    } else if constexpr (HasZero<Block>) {
      HWY_ALIGN float ds[kSide], ms[kSide];
      for (int r = 0; r < kSide; ++r) {
        ds[r] = float_at(w[r]);
        ms[r] = -(ds[r] * static_cast<float>(Block::zero(w[r])));
      }
      d_ = hn::Load(F8(), ds);
      m_ = hn::Load(F8(), ms);
    } else if constexpr (Block::elements == 32) {
      d_ = halves_at<Block::minimum>(w, 0, m_);
    } else if constexpr (OneFactor<Block>) {
      d_ = halves_at<false>(w, Block::d_at, m_);
    } else {
      d_ = halves_at<Block::minimum>(w, Block::d_at, m_);
      turn_scales(w);
    }
  }

  HWY_INLINE VF factor(int t) const {
    if constexpr (Block::elements == 32 || OneFactor<Block>)
      return d_;
    else
      return hn::Mul(d_, hn::ConvertTo(F8(), low(bytes(t))));
  }
  // where there are minima
  HWY_INLINE VF minimum(int t) const {
    if constexpr (!Block::minimum)
      return hn::Zero(F8());
    else if constexpr (Block::elements == 32)
      return m_;
    else
      return hn::Neg(
          hn::Mul(m_, hn::ConvertTo(F8(), kTwoInOne ? hn::ShiftRight<4>(bytes(t)) : bytes(8 + t))));
  }

 private:
  static constexpr bool kTwoInOne = Block::run == 16 && Block::minimum;

  HWY_INLINE VX bytes(int t) const {
    if constexpr (kTwoInOne) {
      const hn::Rebind<uint8_t, I8x> narrow;
      return hn::PromoteTo(I8x(), hn::LoadU(narrow, scales_ + t * kSide));
    } else {
      const hn::Rebind<int8_t, I8x> narrow;
      const auto* at = reinterpret_cast<const int8_t*>(scales_) + t * kSide;
      return hn::PromoteTo(I8x(), hn::LoadU(narrow, at));
    }
  }
  static HWY_INLINE VX low(VX v) { return kTwoInOne ? hn::And(v, hn::Set(I8x(), 15)) : v; }

  // byte t of every block's scales next to each other
  HWY_INLINE void turn_scales(const uint8_t* const (&w)[kSide]) {
    const ScaleBytes d8;
    const hn::Repartition<uint16_t, ScaleBytes> d16;
    const hn::Repartition<uint32_t, ScaleBytes> d32;
    VS fours[kSide / 4][4];
#pragma GCC unroll 2
    for (int q = 0; q < kSide / 4; ++q) {
      const auto code = [&](int r) HWY_ATTR { return Block::scale_codes(w[4 * q + r]); };
      const VS a = code(0), b = code(1), c = code(2), e = code(3);
      const auto in_pairs = [&](VS x) HWY_ATTR { return hn::BitCast(d16, x); };
      const auto ab = in_pairs(hn::InterleaveLower(d8, a, b)),
                 ce = in_pairs(hn::InterleaveLower(d8, c, e)),
                 ab2 = in_pairs(hn::InterleaveUpper(d8, a, b)),
                 ce2 = in_pairs(hn::InterleaveUpper(d8, c, e));
      fours[q][0] = hn::BitCast(d8, hn::InterleaveLower(d16, ab, ce));
      fours[q][1] = hn::BitCast(d8, hn::InterleaveUpper(d16, ab, ce));
      fours[q][2] = hn::BitCast(d8, hn::InterleaveLower(d16, ab2, ce2));
      fours[q][3] = hn::BitCast(d8, hn::InterleaveUpper(d16, ab2, ce2));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      if constexpr (kSide == 8) {
        const auto a = hn::BitCast(d32, fours[0][i]), b = hn::BitCast(d32, fours[1][i]);
        hn::Store(hn::BitCast(d8, hn::InterleaveLower(d32, a, b)), d8, scales_ + 32 * i);
        hn::Store(hn::BitCast(d8, hn::InterleaveUpper(d32, a, b)), d8, scales_ + 32 * i + 16);
      } else {
        hn::Store(fours[0][i], d8, scales_ + 16 * i);
      }
  }

  VF d_, m_;  // of the blocks
  HWY_ALIGN uint8_t scales_[16 * kSide];
};

// The factors of the runs of one block of each of `columns` rows of w, those of a run next to each
// other: d and, where there are minima, m [elements / run][columns]. block(j) is row j's.
template <class Block, int64_t columns, class Rows>
HWY_INLINE void factors_of_columns(const Rows& block, float* d, float* m) {
  for (int64_t j = 0; j < columns; j += kSide) {
    const uint8_t* side[kSide];
#pragma GCC unroll 8
    for (int r = 0; r < kSide; ++r) side[r] = block(j + r);
    const SideFactors<Block> factors(side);
    for (int t = 0; t < Block::elements / Block::run; ++t) {
      hn::StoreU(factors.factor(t), F8(), d + t * columns + j);
      if constexpr (Block::minimum) hn::StoreU(factors.minimum(t), F8(), m + t * columns + j);
    }
  }
}

template <int bytes>
HWY_INLINE void ask_for(const uint8_t* p) {
#pragma GCC unroll 32
  for (int i = 0; i < bytes; i += 64) prefetch(p + i);
}

template <class Body>
HWY_INLINE void with_codes(DType type, const Body& body) {
  with_block(type, [&]<class Block>() HWY_ATTR {
    if constexpr (HasCodes<Block>) body.template operator()<Block>();
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
