// Random numbers of base/rng.h by vectors: the same bits.
#if defined(TESSERA_KERNELS_RANDOM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_RANDOM_INL_H_
#undef TESSERA_KERNELS_RANDOM_INL_H_
#else
#define TESSERA_KERNELS_RANDOM_INL_H_
#endif

#include "tessera/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

using VU32 = hn::Vec<U32>;
using U64 = hn::Repartition<uint64_t, U32>;

/// The upper and the lower half of the products of x and a number.
HWY_INLINE void wide_product(VU32 x, uint32_t number, VU32& high, VU32& low) {
  const U32 d;
  const U64 wide;
  const VU32 factor = hn::Set(d, number);
  const auto even = hn::MulEven(x, factor);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, x))), factor);
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
}

/// Factors of dropout: 0 with probability limit / 2^32, else `scale`, for elements first ..
/// first + n of the stream of `key`. Writes whole blocks, from that of the first element on, and
/// returns the address of the first one: up to 4 kLanes + 3 more floats than n.
HWY_INLINE const float* dropout_factors(
    uint64_t key, uint64_t first, int64_t n, uint32_t limit, float scale, float* to) {
  const U32 d;
  const int64_t skipped = static_cast<int64_t>(first % 4);
  uint64_t block = first / 4;
  const auto scales = all(scale);
  for (int64_t at = 0; at < skipped + n; at += 4 * kLanes, block += kLanes) {
    const auto low_block = static_cast<uint32_t>(block);
    VU32 c0 = hn::Add(hn::Set(d, low_block), hn::Iota(d, 0));
    // the upper half of a block's number is one more where the lower one has wrapped; after the
    // last of 2^62 blocks comes the first one
    const VU32 upper = hn::Set(d, static_cast<uint32_t>(block >> 32));
    const VU32 carried =
        hn::IfThenElse(hn::Lt(c0, hn::Set(d, low_block)), hn::Add(upper, hn::Set(d, 1)), upper);
    VU32 c1 = hn::And(carried, hn::Set(d, 0x3FFFFFFFu));
    VU32 c2 = hn::Zero(d), c3 = hn::Zero(d);
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      VU32 a_high, a_low, b_high, b_low;
      wide_product(c0, 0xD2511F53u, a_high, a_low);
      wide_product(c2, 0xCD9E8D57u, b_high, b_low);
      c0 = hn::Xor(hn::Xor(b_high, c1), hn::Set(d, k0));
      c2 = hn::Xor(hn::Xor(a_high, c3), hn::Set(d, k1));
      c1 = b_low;
      c3 = a_low;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const VU32 limits = hn::Set(d, limit);
    const auto factor = [&](VU32 bits) HWY_ATTR {
      return hn::IfThenZeroElse(hn::RebindMask(F32(), hn::Lt(bits, limits)), scales);
    };
    hn::StoreInterleaved4(factor(c0), factor(c1), factor(c2), factor(c3), F32(), to + at);
  }
  return to + skipped;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
