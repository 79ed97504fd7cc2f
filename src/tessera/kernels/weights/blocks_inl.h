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

HWY_INLINE VI unsigned_bytes(const uint8_t* p) {
  return hn::PromoteTo(I32(), hn::LoadU(U8(), p));
}
HWY_INLINE VI signed_bytes(const uint8_t* p) {
  return hn::PromoteTo(I32(), hn::LoadU(I8(), reinterpret_cast<const int8_t*>(p)));
}
HWY_INLINE VI int_all(int32_t value) {
  return hn::Set(I32(), value);
}
HWY_INLINE VI low_bits(VI v, int32_t mask) {
  return hn::And(v, int_all(mask));
}
HWY_INLINE V32 to_float(VI v) {
  return hn::ConvertTo(F32(), v);
}

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
  const auto small =
      hn::BitCast(du, hn::Mul(hn::ConvertTo(F32(), hn::BitCast(I32(), magnitude)), all(0x1p-24f)));
  const auto smagnitude = hn::BitCast(I32(), magnitude);
  auto value = hn::IfThenElse(hn::RebindMask(du, hn::Gt(smagnitude, hn::Set(I32(), 0x7bff))),
                              special, rebased);
  value =
      hn::IfThenElse(hn::RebindMask(du, hn::Lt(smagnitude, hn::Set(I32(), 0x0400))), small, value);
  return hn::BitCast(F32(), hn::Or(value, sign));
#endif
}

HWY_INLINE V32 bf16s(const uint16_t* p) {
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), p))));
}

// d * q + m without fusing: the format's values are rounded twice.
HWY_INLINE V32 scaled(VI q, V32 d) {
  return hn::Mul(to_float(q), d);
}
HWY_INLINE V32 scaled_plus(VI q, V32 d, V32 m) {
  return hn::Add(scaled(q, d), m);
}
HWY_INLINE V32 scaled_minus(VI q, V32 d, V32 m) {
  return hn::Sub(scaled(q, d), m);
}

// A block type is a struct with `elements`, `bytes`, and unpack(block, emit), which calls
// emit(e, v) with the values of elements e .. e + kLanes, e ascending: to store them, or to use
// them in a sum whose order must be that of the elements.

// --- 32-element blocks: nibbles low 16, high 16 --------------------------------------------------

constexpr int kHalfVectors = 16 / kLanes;

// emits value(q, e) of the low nibbles of 16 bytes, then of the high ones; e: the first element
template <class Value, class Emit>
HWY_INLINE void nibbles(const uint8_t* p, const Value& value, const Emit& emit) {
  VI v[kHalfVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kHalfVectors; ++i) {
    v[i] = unsigned_bytes(p + i * kLanes);
    emit(i * kLanes, value(low_bits(v[i], 15), i * kLanes));
  }
#pragma GCC unroll 4
  for (int i = 0; i < kHalfVectors; ++i)
    emit(16 + i * kLanes, value(hn::ShiftRight<4>(v[i]), 16 + i * kLanes));
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

struct Q4_0 {
  static constexpr int elements = 32, bytes = 18;
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all(half_at(b));
    nibbles(
        b + 2, [&](VI q, int) HWY_ATTR { return scaled(hn::Sub(q, int_all(8)), d); }, emit);
  }
};

struct Q4_1 {
  static constexpr int elements = 32, bytes = 20;
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all(half_at(b)), m = all(half_at(b + 2));
    nibbles(
        b + 4, [&](VI q, int) HWY_ATTR { return scaled_plus(q, d, m); }, emit);
  }
};

struct Q5_0 {
  static constexpr int elements = 32, bytes = 22;
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all(half_at(b));
    const auto value = [&](VI q, int e) HWY_ATTR {
      return scaled(hn::Sub(hn::Or(q, fifth_bits(b + 2, e)), int_all(16)), d);
    };
    nibbles(b + 6, value, emit);
  }
};

struct Q5_1 {
  static constexpr int elements = 32, bytes = 24;
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all(half_at(b)), m = all(half_at(b + 2));
    const auto value = [&](VI q, int e)
                           HWY_ATTR { return scaled_plus(hn::Or(q, fifth_bits(b + 4, e)), d, m); };
    nibbles(b + 8, value, emit);
  }
};

struct Q8_0 {
  static constexpr int elements = 32, bytes = 34;
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all(half_at(b));
#pragma GCC unroll 8
    for (int e = 0; e < 32; e += kLanes) emit(e, scaled(signed_bytes(b + 2 + e), d));
  }
};

// --- 256-element blocks --------------------------------------------------------------------------

HWY_INLINE VI shifted(VI v, int count) {
  return hn::ShiftRightSame(v, count);
}

// body(half, quarter, sixteen) for the groups of 16 elements that share a scale; element
// 128 half + 32 quarter + sixteen is the first. Unrolled, so that shift counts are constants.
template <class Body>
HWY_INLINE void for_sixteens(const Body& body) {
  for (int half = 0; half < 2; ++half)
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter)
#pragma GCC unroll 2
      for (int sixteen = 0; sixteen < 32; sixteen += 16) body(half, quarter, sixteen);
}

struct Q2K {
  static constexpr int elements = 256, bytes = 84;
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const float d = half_at(b + 80), dmin = half_at(b + 82);
    for_sixteens([&](int half, int quarter, int sixteen) HWY_ATTR {
      const int e = 128 * half + 32 * quarter + sixteen;
      const int scale = b[e / 16];
      const V32 ds = all(d * static_cast<float>(scale & 15));
      const V32 ms = all(dmin * static_cast<float>(scale >> 4));
      const uint8_t* qs = b + 16 + 32 * half + sixteen;
      for (int i = 0; i < 16; i += kLanes)
        emit(e + i,
             scaled_minus(low_bits(shifted(unsigned_bytes(qs + i), 2 * quarter), 3), ds, ms));
    });
  }
};

HWY_INLINE int scale_q3_k(const uint8_t* s, int j) {
  const int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
  return (low | (((s[8 + j % 4] >> (2 * (j / 4))) & 3) << 4)) - 32;
}

struct Q3K {
  static constexpr int elements = 256, bytes = 110;
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const float d = half_at(b + 108);
    for_sixteens([&](int half, int quarter, int sixteen) HWY_ATTR {
      const int e = 128 * half + 32 * quarter + sixteen;
      const V32 ds = all(d * static_cast<float>(scale_q3_k(b + 96, e / 16)));
      const uint8_t* qs = b + 32 + 32 * half + sixteen;
      for (int i = 0; i < 16; i += kLanes) {
        const VI low = low_bits(shifted(unsigned_bytes(qs + i), 2 * quarter), 3);
        const VI high = low_bits(shifted(unsigned_bytes(b + sixteen + i), 4 * half + quarter), 1);
        emit(e + i, scaled(hn::Sub(hn::Or(low, hn::ShiftLeft<2>(high)), int_all(4)), ds));
      }
    });
  }
};

struct ScaleMin {
  float d[8], m[8];
};

// q4_k and q5_k: eight 6-bit scales and minima in 12 bytes
HWY_INLINE ScaleMin scales_k4(const uint8_t* b) {
  const float d = half_at(b), dmin = half_at(b + 2);
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

struct Q4K {
  static constexpr int elements = 256, bytes = 144;
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const ScaleMin s = scales_k4(b);
    for (int j = 0; j < 8; j += 2) {
      const uint8_t* qs = b + 16 + 16 * j;
      const V32 d0 = all(s.d[j]), m0 = all(s.m[j]), d1 = all(s.d[j + 1]), m1 = all(s.m[j + 1]);
      for (int i = 0; i < 32; i += kLanes)
        emit(32 * j + i, scaled_minus(low_bits(unsigned_bytes(qs + i), 15), d0, m0));
      for (int i = 0; i < 32; i += kLanes)
        emit(32 * j + 32 + i, scaled_minus(hn::ShiftRight<4>(unsigned_bytes(qs + i)), d1, m1));
    }
  }
};

struct Q5K {
  static constexpr int elements = 256, bytes = 176;
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const ScaleMin s = scales_k4(b);
    for (int j = 0; j < 8; ++j) {
      const uint8_t* qs = b + 48 + 32 * (j / 2);
      const V32 d = all(s.d[j]), m = all(s.m[j]);
      for (int i = 0; i < 32; i += kLanes) {
        const VI low = low_bits(shifted(unsigned_bytes(qs + i), 4 * (j % 2)), 15);
        const VI high = low_bits(shifted(unsigned_bytes(b + 16 + i), j), 1);
        emit(32 * j + i, scaled_minus(hn::Or(low, hn::ShiftLeft<4>(high)), d, m));
      }
    }
  }
};

struct Q6K {
  static constexpr int elements = 256, bytes = 210;
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const float d = half_at(b + 208);
    for_sixteens([&](int half, int quarter, int sixteen) HWY_ATTR {
      const int e = 128 * half + 32 * quarter + sixteen;
      const V32 ds = all(d * static_cast<float>(static_cast<int8_t>(b[192 + e / 16])));
      const uint8_t* ql = b + 64 * half + 32 * (quarter % 2) + sixteen;
      const uint8_t* qh = b + 128 + 32 * half + sixteen;
      for (int i = 0; i < 16; i += kLanes) {
        const VI low = low_bits(shifted(unsigned_bytes(ql + i), quarter < 2 ? 0 : 4), 15);
        const VI high = low_bits(shifted(unsigned_bytes(qh + i), 2 * quarter), 3);
        emit(e + i, scaled(hn::Sub(hn::Or(low, hn::ShiftLeft<4>(high)), int_all(32)), ds));
      }
    });
  }
};

// 16-bit floats as blocks of one vector; the end of a row that fills none is the caller's affair.
template <V32 (*convert)(const uint16_t*)>
struct Halves {
  static constexpr int elements = kLanes, bytes = 2 * kLanes;
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    emit(0, convert(reinterpret_cast<const uint16_t*>(b)));  // LoadU: any alignment
  }
  /// The last n < kLanes values, zeros above.
  static HWY_INLINE V32 rest(const uint8_t* b, int64_t n) {
    HWY_ALIGN uint16_t part[kLanes] = {};
    std::memcpy(part, b, static_cast<size_t>(n) * 2);
    return convert(part);
  }
};
using F16 = Halves<halves>;
using BF16 = Halves<bf16s>;

template <class Block>
constexpr bool is_halves = Block::bytes == 2 * Block::elements;

/// Calls body.template operator()<Block>() for any readable type but float32.
template <class Body>
HWY_INLINE void with_block(DType type, const Body& body) {
  switch (type) {
    case DType::f16:
      return body.template operator()<F16>();
    case DType::bf16:
      return body.template operator()<BF16>();
    case DType::q4_0:
      return body.template operator()<Q4_0>();
    case DType::q4_1:
      return body.template operator()<Q4_1>();
    case DType::q5_0:
      return body.template operator()<Q5_0>();
    case DType::q5_1:
      return body.template operator()<Q5_1>();
    case DType::q8_0:
      return body.template operator()<Q8_0>();
    case DType::q2_k:
      return body.template operator()<Q2K>();
    case DType::q3_k:
      return body.template operator()<Q3K>();
    case DType::q4_k:
      return body.template operator()<Q4K>();
    case DType::q5_k:
      return body.template operator()<Q5K>();
    case DType::q6_k:
      return body.template operator()<Q6K>();
    default:
      return;
  }
}

// --- runs of blocks ------------------------------------------------------------------------------

template <class Block>
HWY_INLINE void dequantize_blocks(const uint8_t* src, int64_t n, float* dst) {
  int64_t i = 0;
  for (; i + Block::elements <= n; i += Block::elements, src += Block::bytes)
    Block::unpack(src, [&](int e, V32 v) HWY_ATTR { store(v, dst + i + e); });
  if constexpr (is_halves<Block>)
    if (i < n) store_part(Block::rest(src, n - i), dst + i, n - i);
}

// n values, whole blocks of the type, at src
HWY_INLINE void dequantize_run(DType type, const uint8_t* src, int64_t n, float* dst) {
  if (type == DType::f32) {
    std::memcpy(dst, src, static_cast<size_t>(n) * 4);
    return;
  }
  with_block(type, [&]<class Block>() HWY_ATTR { dequantize_blocks<Block>(src, n, dst); });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
