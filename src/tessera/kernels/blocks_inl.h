// Vector forms of blocks_ref.cpp, for blocks.cpp and for the panels of matmul.cpp.
#if defined(TESSERA_KERNELS_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_BLOCKS_INL_H_
#undef TESSERA_KERNELS_BLOCKS_INL_H_
#else
#define TESSERA_KERNELS_BLOCKS_INL_H_
#endif

#include <cstring>

#include "tessera/base/dtype.h"
#include "tessera/base/half.h"
#include "tessera/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

using U8 = hn::Rebind<uint8_t, F32>;
using I8 = hn::Rebind<int8_t, F32>;
using U16 = hn::Rebind<uint16_t, F32>;
using VI = hn::Vec<I32>;

HWY_INLINE VI bytes(const uint8_t* p) { return hn::PromoteTo(I32(), hn::LoadU(U8(), p)); }
HWY_INLINE VI signed_bytes(const uint8_t* p) {
  return hn::PromoteTo(I32(), hn::LoadU(I8(), reinterpret_cast<const int8_t*>(p)));
}
HWY_INLINE VI int_all(int32_t value) { return hn::Set(I32(), value); }
HWY_INLINE VI low_bits(VI v, int32_t mask) { return hn::And(v, int_all(mask)); }
HWY_INLINE V32 to_float(VI v) { return hn::ConvertTo(F32(), v); }

HWY_INLINE float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return _cvtsh_ss(bits);
#else
  return f16_to_float(bits);
#endif
}

// kLanes halves to floats. Highway's own conversion below AVX2 turns infinities into numbers.
HWY_INLINE V32 halves(const uint16_t* p) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<hwy::float16_t, F32> d16;
  return hn::PromoteTo(F32(), hn::BitCast(d16, hn::LoadU(U16(), p)));
#else
  const U32 du;
  const auto bits = hn::PromoteTo(du, hn::LoadU(U16(), p));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffu));
  const auto rebased = hn::Add(hn::ShiftLeft<13>(magnitude), hn::Set(du, 112u << 23));
  const auto special = hn::Add(rebased, hn::Set(du, 112u << 23));  // exponent 31 becomes 255
  const auto small = hn::BitCast(
      du, hn::Mul(hn::ConvertTo(F32(), hn::BitCast(I32(), magnitude)), all(0x1p-24f)));
  const auto smagnitude = hn::BitCast(I32(), magnitude);
  auto value = hn::IfThenElse(
      hn::RebindMask(du, hn::Gt(smagnitude, hn::Set(I32(), 0x7bff))), special, rebased);
  value = hn::IfThenElse(hn::RebindMask(du, hn::Lt(smagnitude, hn::Set(I32(), 0x0400))), small, value);
  return hn::BitCast(F32(), hn::Or(value, sign));
#endif
}

HWY_INLINE V32 bf16s(const uint16_t* p) {
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), p))));
}

// d * q + m without fusing: the format's values are rounded twice.
HWY_INLINE V32 scaled(VI q, V32 d) { return hn::Mul(to_float(q), d); }
HWY_INLINE V32 scaled_plus(VI q, V32 d, V32 m) { return hn::Add(scaled(q, d), m); }
HWY_INLINE V32 scaled_minus(VI q, V32 d, V32 m) { return hn::Sub(scaled(q, d), m); }

// --- 32-element blocks: nibbles low 16, high 16 --------------------------------------------------

HWY_INLINE void block_q4_0(const uint8_t* b, float* y) {
  const V32 d = all(half_at(b));
  for (int i = 0; i < 16; i += kLanes) {
    const VI v = bytes(b + 2 + i);
    store(scaled(hn::Sub(low_bits(v, 15), int_all(8)), d), y + i);
    store(scaled(hn::Sub(hn::ShiftRight<4>(v), int_all(8)), d), y + 16 + i);
  }
}

HWY_INLINE void block_q4_1(const uint8_t* b, float* y) {
  const V32 d = all(half_at(b));
  const V32 m = all(half_at(b + 2));
  for (int i = 0; i < 16; i += kLanes) {
    const VI v = bytes(b + 4 + i);
    store(scaled_plus(low_bits(v, 15), d, m), y + i);
    store(scaled_plus(hn::ShiftRight<4>(v), d, m), y + 16 + i);
  }
}

// bit e of a block's 32 high bits, as 0 or 16, for elements first .. first + kLanes
HWY_INLINE VI fifth_bits(const uint8_t* p, int first) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  const U32 du;
  const auto shift = hn::Iota(du, static_cast<uint32_t>(first));
  const auto bit = hn::And(hn::Shr(hn::Set(du, word), shift), hn::Set(du, 1));
  return hn::BitCast(I32(), hn::ShiftLeft<4>(bit));
}

HWY_INLINE void block_q5_0(const uint8_t* b, float* y) {
  const V32 d = all(half_at(b));
  for (int i = 0; i < 16; i += kLanes) {
    const VI v = bytes(b + 6 + i);
    const VI low = hn::Or(low_bits(v, 15), fifth_bits(b + 2, i));
    const VI high = hn::Or(hn::ShiftRight<4>(v), fifth_bits(b + 2, 16 + i));
    store(scaled(hn::Sub(low, int_all(16)), d), y + i);
    store(scaled(hn::Sub(high, int_all(16)), d), y + 16 + i);
  }
}

HWY_INLINE void block_q5_1(const uint8_t* b, float* y) {
  const V32 d = all(half_at(b));
  const V32 m = all(half_at(b + 2));
  for (int i = 0; i < 16; i += kLanes) {
    const VI v = bytes(b + 8 + i);
    store(scaled_plus(hn::Or(low_bits(v, 15), fifth_bits(b + 4, i)), d, m), y + i);
    store(scaled_plus(hn::Or(hn::ShiftRight<4>(v), fifth_bits(b + 4, 16 + i)), d, m), y + 16 + i);
  }
}

HWY_INLINE void block_q8_0(const uint8_t* b, float* y) {
  const V32 d = all(half_at(b));
  for (int i = 0; i < 32; i += kLanes) store(scaled(signed_bytes(b + 2 + i), d), y + i);
}

// --- 256-element blocks --------------------------------------------------------------------------

HWY_INLINE VI shifted(VI v, int count) { return hn::ShiftRightSame(v, count); }

HWY_INLINE void block_q2_k(const uint8_t* b, float* y) {
  const float d = half_at(b + 80);
  const float dmin = half_at(b + 82);
  for (int e = 0; e < 256; e += 16) {
    const int scale = b[e / 16];
    const V32 ds = all(d * static_cast<float>(scale & 15));
    const V32 ms = all(dmin * static_cast<float>(scale >> 4));
    const uint8_t* qs = b + 16 + 32 * (e / 128) + e % 32;
    for (int i = 0; i < 16; i += kLanes)
      store(scaled_minus(low_bits(shifted(bytes(qs + i), 2 * (e % 128 / 32)), 3), ds, ms), y + e + i);
  }
}

HWY_INLINE int scale_q3_k(const uint8_t* s, int j) {
  const int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
  return (low | (((s[8 + j % 4] >> (2 * (j / 4))) & 3) << 4)) - 32;
}

HWY_INLINE void block_q3_k(const uint8_t* b, float* y) {
  const float d = half_at(b + 108);
  for (int e = 0; e < 256; e += 16) {
    const V32 ds = all(d * static_cast<float>(scale_q3_k(b + 96, e / 16)));
    const uint8_t* qs = b + 32 + 32 * (e / 128) + e % 32;
    for (int i = 0; i < 16; i += kLanes) {
      const VI low = low_bits(shifted(bytes(qs + i), 2 * (e % 128 / 32)), 3);
      const VI high = low_bits(shifted(bytes(b + e % 32 + i), e / 32), 1);
      store(scaled(hn::Sub(hn::Or(low, hn::ShiftLeft<2>(high)), int_all(4)), ds), y + e + i);
    }
  }
}

struct ScaleMin {
  float d[8], m[8];
};

// q4_k and q5_k: eight 6-bit scales and minima in 12 bytes
HWY_INLINE ScaleMin scales_k4(const uint8_t* b) {
  const float d = half_at(b);
  const float dmin = half_at(b + 2);
  const uint8_t* s = b + 4;
  ScaleMin r;
  for (int j = 0; j < 4; ++j) {
    r.d[j] = d * static_cast<float>(s[j] & 63);
    r.m[j] = dmin * static_cast<float>(s[j + 4] & 63);
    r.d[j + 4] = d * static_cast<float>((s[j + 8] & 15) | ((s[j] >> 6) << 4));
    r.m[j + 4] = dmin * static_cast<float>((s[j + 8] >> 4) | ((s[j + 4] >> 6) << 4));
  }
  return r;
}

HWY_INLINE void block_q4_k(const uint8_t* b, float* y) {
  const ScaleMin s = scales_k4(b);
  for (int j = 0; j < 4; ++j) {
    const uint8_t* qs = b + 16 + 32 * j;
    const V32 d0 = all(s.d[2 * j]), m0 = all(s.m[2 * j]);
    const V32 d1 = all(s.d[2 * j + 1]), m1 = all(s.m[2 * j + 1]);
    for (int i = 0; i < 32; i += kLanes) {
      const VI v = bytes(qs + i);
      store(scaled_minus(low_bits(v, 15), d0, m0), y + 64 * j + i);
      store(scaled_minus(hn::ShiftRight<4>(v), d1, m1), y + 64 * j + 32 + i);
    }
  }
}

HWY_INLINE void block_q5_k(const uint8_t* b, float* y) {
  const ScaleMin s = scales_k4(b);
  for (int j = 0; j < 8; ++j) {
    const uint8_t* qs = b + 48 + 32 * (j / 2);
    const V32 d = all(s.d[j]), m = all(s.m[j]);
    for (int i = 0; i < 32; i += kLanes) {
      const VI low = low_bits(shifted(bytes(qs + i), 4 * (j % 2)), 15);
      const VI high = low_bits(shifted(bytes(b + 16 + i), j), 1);
      store(scaled_minus(hn::Or(low, hn::ShiftLeft<4>(high)), d, m), y + 32 * j + i);
    }
  }
}

HWY_INLINE void block_q6_k(const uint8_t* b, float* y) {
  const float d = half_at(b + 208);
  for (int e = 0; e < 256; e += 16) {
    const V32 ds = all(d * static_cast<float>(static_cast<int8_t>(b[192 + e / 16])));
    const uint8_t* ql = b + 64 * (e / 128) + e % 64;
    const uint8_t* qh = b + 128 + 32 * (e / 128) + e % 32;
    for (int i = 0; i < 16; i += kLanes) {
      const VI low = low_bits(shifted(bytes(ql + i), e % 128 < 64 ? 0 : 4), 15);
      const VI high = low_bits(shifted(bytes(qh + i), 2 * (e % 128 / 32)), 3);
      store(scaled(hn::Sub(hn::Or(low, hn::ShiftLeft<4>(high)), int_all(32)), ds), y + e + i);
    }
  }
}

// --- runs of blocks ------------------------------------------------------------------------------

template <int elements, int block_bytes, void (*block)(const uint8_t*, float*)>
HWY_INLINE void run_blocks(const uint8_t* src, int64_t n, float* dst) {
  for (int64_t i = 0; i < n; i += elements, src += block_bytes) block(src, dst + i);
}

template <V32 (*convert)(const uint16_t*)>
HWY_INLINE void run_16_bit(const uint8_t* src, int64_t n, float* dst) {
  HWY_ALIGN uint16_t part[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    std::memcpy(part, src + 2 * i, sizeof(part));  // the source may be unaligned
    store(convert(part), dst + i);
  }
  if (i == n) return;
  std::memcpy(part, src + 2 * i, static_cast<size_t>(n - i) * 2);
  store_part(convert(part), dst + i, n - i);
}

// n whole blocks at src
HWY_INLINE void dequantize_run(DType type, const uint8_t* src, int64_t n, float* dst) {
  switch (type) {
    case DType::f32: std::memcpy(dst, src, static_cast<size_t>(n) * 4); return;
    case DType::f16: return run_16_bit<halves>(src, n, dst);
    case DType::bf16: return run_16_bit<bf16s>(src, n, dst);
    case DType::q4_0: return run_blocks<32, 18, block_q4_0>(src, n, dst);
    case DType::q4_1: return run_blocks<32, 20, block_q4_1>(src, n, dst);
    case DType::q5_0: return run_blocks<32, 22, block_q5_0>(src, n, dst);
    case DType::q5_1: return run_blocks<32, 24, block_q5_1>(src, n, dst);
    case DType::q8_0: return run_blocks<32, 34, block_q8_0>(src, n, dst);
    case DType::q2_k: return run_blocks<256, 84, block_q2_k>(src, n, dst);
    case DType::q3_k: return run_blocks<256, 110, block_q3_k>(src, n, dst);
    case DType::q4_k: return run_blocks<256, 144, block_q4_k>(src, n, dst);
    case DType::q5_k: return run_blocks<256, 176, block_q5_k>(src, n, dst);
    case DType::q6_k: return run_blocks<256, 210, block_q6_k>(src, n, dst);
    default: return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
