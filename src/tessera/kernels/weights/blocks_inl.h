// Vector forms of blocks_ref.cpp: the values for blocks.cpp and matmul.cpp, the codes for
// digits.cpp.
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
#include "tessera/kernels/weights/codebooks.h"

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

// kLanes halves to floats. Highway's own conversion below AVX2 turns infinities into numbers.
HWY_INLINE V32 halves(const uint16_t* p) {
#if HWY_TARGET <= HWY_AVX2
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

// one half in all lanes
HWY_INLINE V32 all_half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, F32> d16;
  return hn::PromoteTo(F32(), hn::BitCast(d16, hn::Set(U16(), bits)));
#else
  return all(f16_to_float(bits));
#endif
}

HWY_INLINE V32 bf16s(const uint16_t* p) {
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(U16(), p))));
}

// d * q is exact in float32: 11 bits of a half times at most 8 of a code; in K types times a scale
// of 6 to 8 bits before, at most 24 together. The formats' values, rounded after d * q and again
// after + m, are therefore those of one fused operation.
HWY_INLINE V32 scaled(VI q, V32 d) {
  return hn::Mul(to_float(q), d);
}
HWY_INLINE V32 scaled_plus(VI q, V32 d, V32 m) {
  return hn::MulAdd(to_float(q), d, m);
}
HWY_INLINE V32 scaled_minus(VI q, V32 d, V32 m) {
  return hn::MulSub(to_float(q), d, m);
}

// Codes as bytes, up to 32 at a time; bits that lie in several places are joined so.
using Bytes = hn::CappedTag<uint8_t, 32>;
using VB = hn::Vec<Bytes>;
constexpr int kBytes = HWY_MAX_BYTES < 32 ? HWY_MAX_BYTES : 32;

// Bits shift .. of each byte: as many as the mask has, all of them from the same byte.
HWY_INLINE VB byte_bits(const uint8_t* p, int shift, int mask) {
  const hn::Repartition<uint16_t, Bytes> pairs;
  const auto v = hn::ShiftRightSame(hn::BitCast(pairs, hn::LoadU(Bytes(), p)), shift);
  return hn::And(hn::BitCast(Bytes(), v), hn::Set(Bytes(), static_cast<uint8_t>(mask)));
}
// low | high << shift, of bytes that stay below 256
template <int shift>
HWY_INLINE VB join_bits(VB low, VB high) {
  const hn::Repartition<uint16_t, Bytes> pairs;
  return hn::Or(low, hn::BitCast(Bytes(), hn::ShiftLeft<shift>(hn::BitCast(pairs, high))));
}
HWY_INLINE hn::Vec<hn::RebindToSigned<Bytes>> signed_from(VB v, int offset) {
  return hn::BitCast(hn::RebindToSigned<Bytes>(),
                     hn::Sub(v, hn::Set(Bytes(), static_cast<uint8_t>(offset))));
}

// Four bits each: the low ones of 16 bytes, then the high ones; from code i on.
HWY_INLINE VB nibble_codes(const uint8_t* p, int i) {
  if constexpr (kBytes == 32) {
    const hn::Repartition<uint64_t, Bytes> words;
    HWY_ALIGN static constexpr uint64_t kShift[4] = {0, 0, 4, 4};
    const auto v = hn::BitCast(words, hn::LoadDup128(Bytes(), p));
    return hn::And(hn::BitCast(Bytes(), hn::Shr(v, hn::Load(words, kShift))),
                   hn::Set(Bytes(), uint8_t{15}));
  } else {
    return byte_bits(p, i / 4, 15);
  }
}
// The same, with a fifth bit from bit e of the word before the bytes for code e.
HWY_INLINE VB five_bit_codes(const uint8_t* word, int i) {
  const auto fifth = hn::LoadMaskBits(Bytes(), word + i / 8);
  return hn::Or(nibble_codes(word + 4, i),
                hn::IfThenElseZero(fifth, hn::Set(Bytes(), uint8_t{16})));
}

// A block type is a struct with `elements`, `bytes`, and unpack(block, emit), which calls
// emit(e, v) with the values of elements e .. e + kLanes, e ascending: to store them, or to use
// them in a sum whose order must be that of the elements. Types of 256 elements do so in groups of
// 32: group(block, scales, g, emit), after read_scales(block, scales), so that rows can take turns.
//
// Values are d (code - offset) + m with one d, and one m where there are minima, for `run`
// elements. codes(block, g, i) gives the codes of elements 32 g + i ... as bytes, kBytes of them.
// Types of 32 begin with d and m as halves, those with a `zero` with d as a float: their m is -d
// times zero(block). Floats of eight bits have no codes. In types of 256 d is the half at d_at
// times a byte of scale_codes(block), m the half at m_at times another, and subtracted.

// --- codes of four and five bits -----------------------------------------------------------------

// The values of codes, value(q), where many codes share them: in a table of 16 where the target has
// the permutation.
template <class Value>
class FourBits {
 public:
#if HWY_TARGET == HWY_AVX3
  explicit HWY_INLINE FourBits(const Value& value) : table_(value(hn::Iota(I32(), 0))) {}
  /// Of the low four bits of each lane; the permutation reads no others.
  HWY_INLINE V32 low(VI v) const {
    return V32{_mm512_permutexvar_ps(v.raw, table_.raw)};
  }
  /// Of the four bits above them.
  HWY_INLINE V32 high(VI v) const {
    return low(hn::ShiftRight<4>(v));
  }

 private:
  V32 table_;
#else
  explicit HWY_INLINE FourBits(const Value& value) : value_(value) {}
  HWY_INLINE V32 low(VI v) const {
    return value_(low_bits(v, 15));
  }
  HWY_INLINE V32 high(VI v) const {
    return value_(hn::ShiftRight<4>(v));
  }

 private:
  Value value_;
#endif
};

// 32 codes: four bits from bytes, and a fifth from bit e of a word for code e
template <class Value>
class FiveBits {
 public:
#if HWY_TARGET == HWY_AVX3
  HWY_INLINE FiveBits(const uint8_t* word, const Value& value)
      : table_(value(hn::Iota(I32(), 0))), table16_(value(hn::Iota(I32(), 16))) {
    std::memcpy(&word_, word, 4);
  }
  /// Of the bytes' low bits, for codes first .. first + 16.
  HWY_INLINE V32 low(VI v, int first) const {
    const V32 without = V32{_mm512_permutexvar_ps(v.raw, table_.raw)};
    return V32{_mm512_mask_permutexvar_ps(without.raw, static_cast<__mmask16>(word_ >> first),
                                          v.raw, table16_.raw)};
  }
  HWY_INLINE V32 high(VI v, int first) const {
    return low(hn::ShiftRight<4>(v), first);
  }

 private:
  V32 table_, table16_;
  uint32_t word_;
#else
  HWY_INLINE FiveBits(const uint8_t* word, const Value& value) : value_(value) {
    uint32_t bits;
    std::memcpy(&bits, word, 4);
    word_ = hn::Set(U32(), bits);
  }
  HWY_INLINE V32 low(VI v, int first) const {
    return value_(hn::Or(low_bits(v, 15), fifth(first)));
  }
  HWY_INLINE V32 high(VI v, int first) const {
    return value_(hn::Or(hn::ShiftRight<4>(v), fifth(first)));
  }

 private:
  HWY_INLINE VI fifth(int first) const {
    const auto shift = hn::Iota(U32(), static_cast<uint32_t>(first));
    const auto bit = hn::And(hn::Shr(word_, shift), hn::Set(U32(), 1));
    return hn::BitCast(I32(), hn::ShiftLeft<4>(bit));
  }
  Value value_;
  hn::Vec<U32> word_;
#endif
};

// --- 32-element blocks: nibbles low 16, high 16 --------------------------------------------------

constexpr int kHalfVectors = 16 / kLanes;

// emits low(v, e) of 16 bytes, then high(v, e); e: the first element
template <class Low, class High, class Emit>
HWY_INLINE void nibbles(const uint8_t* p, const Low& low, const High& high, const Emit& emit) {
  VI v[kHalfVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kHalfVectors; ++i) {
    v[i] = unsigned_bytes(p + i * kLanes);
    emit(i * kLanes, low(v[i], i * kLanes));
  }
#pragma GCC unroll 4
  for (int i = 0; i < kHalfVectors; ++i) emit(16 + i * kLanes, high(v[i], 16 + i * kLanes));
}

template <class Value, class Emit>
HWY_INLINE void four_bits(const uint8_t* p, const Value& value, const Emit& emit) {
  const FourBits<Value> codes(value);
  nibbles(
      p, [&](VI v, int) HWY_ATTR { return codes.low(v); },
      [&](VI v, int) HWY_ATTR { return codes.high(v); }, emit);
}

// the word of fifth bits lies before the 16 bytes
template <class Value, class Emit>
HWY_INLINE void five_bits(const uint8_t* p, const Value& value, const Emit& emit) {
  const FiveBits<Value> codes(p, value);
  nibbles(
      p + 4, [&](VI v, int e) HWY_ATTR { return codes.low(v, e); },
      [&](VI v, int e) HWY_ATTR { return codes.high(v, e); }, emit);
}

struct Q4_0 {
  static constexpr int elements = 32, bytes = 18;
  static constexpr int run = 32, offset = 8;
  static constexpr bool minimum = false;
  static HWY_INLINE VB codes(const uint8_t* b, int, int i) { return nibble_codes(b + 2, i); }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all_half(b);
    four_bits(
        b + 2, [&](VI q) HWY_ATTR { return scaled(hn::Sub(q, int_all(8)), d); }, emit);
  }
};

struct Q4_1 {
  static constexpr int elements = 32, bytes = 20;
  static constexpr int run = 32, offset = 0;
  static constexpr bool minimum = true;
  static HWY_INLINE VB codes(const uint8_t* b, int, int i) { return nibble_codes(b + 4, i); }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all_half(b), m = all_half(b + 2);
    four_bits(
        b + 4, [&](VI q) HWY_ATTR { return scaled_plus(q, d, m); }, emit);
  }
};

struct Q5_0 {
  static constexpr int elements = 32, bytes = 22;
  static constexpr int run = 32, offset = 16;
  static constexpr bool minimum = false;
  static HWY_INLINE VB codes(const uint8_t* b, int, int i) { return five_bit_codes(b + 2, i); }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all_half(b);
    five_bits(
        b + 2, [&](VI q) HWY_ATTR { return scaled(hn::Sub(q, int_all(16)), d); }, emit);
  }
};

struct Q5_1 {
  static constexpr int elements = 32, bytes = 24;
  static constexpr int run = 32, offset = 0;
  static constexpr bool minimum = true;
  static HWY_INLINE VB codes(const uint8_t* b, int, int i) { return five_bit_codes(b + 4, i); }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all_half(b), m = all_half(b + 2);
    five_bits(
        b + 4, [&](VI q) HWY_ATTR { return scaled_plus(q, d, m); }, emit);
  }
};

struct Q8_0 {
  static constexpr int elements = 32, bytes = 34;
  static constexpr int run = 32, offset = 128;
  static constexpr bool minimum = false;
  static HWY_INLINE VB codes(const uint8_t* b, int, int i) {
    return hn::Xor(hn::LoadU(Bytes(), b + 2 + i), hn::Set(Bytes(), uint8_t{128}));
  }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all_half(b);
#pragma GCC unroll 8
    for (int e = 0; e < 32; e += kLanes) emit(e, scaled(signed_bytes(b + 2 + e), d));
  }
};

// MXFP4: a power of two, and codes of a sign, two bits of exponent and one of fraction, of which
// `twice` is the value doubled: 0, 1, 2, 3, 4, 6, 8, 12. OCP Microscaling Formats 1.0, sec. 5.
struct MxFp4 {
  static constexpr int elements = 32, bytes = 17;
  static constexpr int run = 32, offset = 16;
  static constexpr bool minimum = false;
  HWY_ALIGN static constexpr uint8_t kCodes[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                                   16, 15, 14, 13, 12, 10, 8,  4};
  static HWY_INLINE VB codes(const uint8_t* b, int, int i) {
    return hn::TableLookupBytes(hn::LoadDup128(Bytes(), kCodes), nibble_codes(b + 1, i));
  }
  static HWY_INLINE VI twice(VI q) {
    const VI m = low_bits(q, 7), zero = int_all(0);
    const VI above4 = hn::Max(hn::Sub(m, int_all(4)), zero);
    const VI above6 = hn::Max(hn::Sub(m, int_all(6)), zero);
    const VI value = hn::Add(m, hn::Add(above4, hn::ShiftLeft<1>(above6)));
    return hn::IfThenElse(hn::Gt(low_bits(q, 8), zero), hn::Sub(zero, value), value);
  }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all(half_of_e8m0(b[0]));
    four_bits(
        b + 1, [&](VI q) HWY_ATTR { return scaled(twice(q), d); }, emit);
  }
};

// --- 32 numbers of quantized folders, with a float as scale --------------------------------------

HWY_INLINE float float_at(const uint8_t* p) {
  float value;
  std::memcpy(&value, p, 4);
  return value;
}

struct ScaledU4 {
  static constexpr int elements = 32, bytes = 21;
  static constexpr int run = 32, offset = 0;
  static constexpr bool minimum = true, has_zero = true;
  static HWY_INLINE int32_t zero(const uint8_t* b) { return b[4]; }
  static HWY_INLINE VB codes(const uint8_t* b, int, int i) { return nibble_codes(b + 5, i); }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all(float_at(b));
    const VI z = int_all(zero(b));
    four_bits(
        b + 5, [&](VI q) HWY_ATTR { return scaled(hn::Sub(q, z), d); }, emit);
  }
};

struct ScaledI8 {
  static constexpr int elements = 32, bytes = 38;
  static constexpr int run = 32, offset = 128;
  static constexpr bool minimum = true, has_zero = true;
  static HWY_INLINE int32_t zero(const uint8_t* b) {
    int16_t value;
    std::memcpy(&value, b + 4, 2);
    return value;
  }
  static HWY_INLINE VB codes(const uint8_t* b, int, int i) {
    return hn::Xor(hn::LoadU(Bytes(), b + 6 + i), hn::Set(Bytes(), uint8_t{128}));
  }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all(float_at(b));
    const VI z = int_all(zero(b));
#pragma GCC unroll 8
    for (int e = 0; e < 32; e += kLanes) emit(e, scaled(hn::Sub(signed_bytes(b + 6 + e), z), d));
  }
};

struct ScaledE4m3 {
  static constexpr int elements = 32, bytes = 36;
  // float8.h, e4m3_to_float()
  static HWY_INLINE V32 value(VI bits) {
    const VI magnitude = low_bits(bits, 0x7f);
    const VI sign = hn::ShiftLeft<24>(low_bits(bits, 0x80));
    const V32 usual = hn::BitCast(F32(), hn::Add(hn::ShiftLeft<20>(magnitude), int_all(120 << 23)));
    const V32 small = scaled(magnitude, all(0x1p-9f));
    const hn::RebindToSigned<F32> d;
    const auto lanes = [&](auto mask) HWY_ATTR { return hn::RebindMask(F32(), mask); };
    V32 v = hn::IfThenElse(lanes(hn::Gt(int_all(8), magnitude)), small, usual);
    const V32 none = hn::BitCast(F32(), hn::Set(d, 0x7fc00000));
    v = hn::IfThenElse(lanes(hn::Eq(magnitude, int_all(0x7f))), none, v);
    return hn::Or(v, hn::BitCast(F32(), sign));
  }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all(float_at(b));
#pragma GCC unroll 8
    for (int e = 0; e < 32; e += kLanes) emit(e, hn::Mul(value(unsigned_bytes(b + 4 + e)), d));
  }
};

/// Whether a block's minimum is -d times a zero.
template <class Block>
concept HasZero = Block::has_zero;

// iq4_nl, iq4_xs: of 32 codes of four bits, kLevels as bytes of offset 128
HWY_ALIGN inline constexpr uint8_t kLevelCodes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                      129, 141, 153, 166, 181, 197, 217, 241};
HWY_INLINE VB level_codes(const uint8_t* p, int i) {
  return hn::TableLookupBytes(hn::LoadDup128(Bytes(), kLevelCodes), nibble_codes(p, i));
}

// --- 256-element blocks --------------------------------------------------------------------------

// body(i, lanes i .. i + kLanes of a vector of bytes as integers)
template <class D, class Body>
HWY_INLINE void each_of_bytes(D, hn::Vec<D> v, int i, const Body& body) {
  constexpr int kCount = static_cast<int>(hn::MaxLanes(D()));
  if constexpr (kCount == kLanes) {
    body(i, hn::PromoteTo(I32(), v));
  } else {
    const hn::Half<D> half;
    each_of_bytes(half, hn::LowerHalf(half, v), i, body);
    each_of_bytes(half, hn::UpperHalf(half, v), i + kCount / 2, body);
  }
}

// The scales of a block as 16 bytes, with those of minima where they are whole bytes too.
using ScaleBytes = hn::FixedTag<uint8_t, 16>;
using VS = hn::Vec<ScaleBytes>;

HWY_INLINE VS scale_bytes(uint64_t low, uint64_t high) {
  const hn::FixedTag<uint64_t, 2> two;
  return hn::BitCast(ScaleBytes(), hn::InterleaveLower(two, hn::Set(two, low), hn::Set(two, high)));
}
HWY_INLINE uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}
HWY_INLINE uint64_t joined(uint32_t low, uint32_t high) {
  return low | uint64_t{high} << 32;
}

template <class Block, class Emit>
HWY_INLINE void unpack_groups(const uint8_t* b, const Emit& emit) {
  typename Block::Scales scales;
  Block::read_scales(b, scales);
#pragma GCC unroll 1
  for (int g = 0; g < Block::elements / Block::group_elements; ++g)
    Block::group(b, scales, g, emit);
}

// the factors of 16 elements each
struct Factors {
  HWY_ALIGN float d[16];
};
struct FactorsAndMinima {
  HWY_ALIGN float d[16], m[16];
};

struct Q2K {
  static constexpr int elements = 256, bytes = 84, group_elements = 32;
  static constexpr int run = 16, offset = 0;
  static constexpr bool minimum = true;
  static HWY_INLINE VB codes(const uint8_t* b, int g, int i) {
    return byte_bits(b + 16 + 32 * (g / 4) + i, 2 * (g % 4), 3);
  }
  // factors in the lower four bits, minima in the upper
  static constexpr int d_at = 80, m_at = 82;
  static HWY_INLINE VS scale_codes(const uint8_t* b) { return hn::LoadU(ScaleBytes(), b); }
  using Scales = FactorsAndMinima;
  static HWY_INLINE void read_scales(const uint8_t* b, Scales& s) {
    const V32 d = all_half(b + d_at), dmin = all_half(b + m_at);
    for (int i = 0; i < 16; i += kLanes) {
      const VI v = unsigned_bytes(b + i);
      store(scaled(low_bits(v, 15), d), s.d + i);
      store(scaled(hn::ShiftRight<4>(v), dmin), s.m + i);
    }
  }
  template <class Emit>
  static HWY_INLINE void group(const uint8_t* b, const Scales& s, int g, const Emit& emit) {
#pragma GCC unroll 2
    for (int i = 0; i < 32; i += kBytes)
      each_of_bytes(Bytes(), codes(b, g, i), 32 * g + i, [&](int e, VI q) HWY_ATTR {
        emit(e, scaled_minus(q, all(s.d[e / 16]), all(s.m[e / 16])));
      });
  }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    unpack_groups<Q2K>(b, emit);
  }
};

struct Q3K {
  static constexpr int elements = 256, bytes = 110, group_elements = 32;
  static constexpr int run = 16, offset = 4;
  static constexpr bool minimum = false;
  static HWY_INLINE VB codes(const uint8_t* b, int g, int i) {
    return join_bits<2>(byte_bits(b + 32 + 32 * (g / 4) + i, 2 * (g % 4), 3),
                        byte_bits(b + i, g, 1));
  }
  // sixteen 6-bit scales in 12 bytes: nibbles, then pairs of bits; four bytes in a word
  static constexpr int d_at = 108;
  static HWY_INLINE VS scale_codes(const uint8_t* b) {
    const uint32_t a0 = word_at(b + 96), a1 = word_at(b + 100), high = word_at(b + 104);
    const auto four = [&](uint32_t nibbles, uint32_t pairs)
                          HWY_ATTR { return (nibbles & 0x0f0f0f0fu) | (pairs & 0x30303030u); };
    const VS v = scale_bytes(joined(four(a0, high << 4), four(a1, high << 2)),
                             joined(four(a0 >> 4, high), four(a1 >> 4, high >> 2)));
    return hn::Sub(v, hn::Set(ScaleBytes(), uint8_t{32}));
  }
  using Scales = Factors;
  static HWY_INLINE void read_scales(const uint8_t* b, Scales& s) {
    const V32 d = all_half(b + d_at);
    const hn::RebindToSigned<ScaleBytes> of_signs;
    each_of_bytes(of_signs, hn::BitCast(of_signs, scale_codes(b)), 0,
                  [&](int i, VI v) HWY_ATTR { store(scaled(v, d), s.d + i); });
  }
  template <class Emit>
  static HWY_INLINE void group(const uint8_t* b, const Scales& s, int g, const Emit& emit) {
#pragma GCC unroll 2
    for (int i = 0; i < 32; i += kBytes)
      each_of_bytes(hn::RebindToSigned<Bytes>(), signed_from(codes(b, g, i), offset), 32 * g + i,
                    [&](int e, VI q) HWY_ATTR { emit(e, scaled(q, all(s.d[e / 16]))); });
  }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    unpack_groups<Q3K>(b, emit);
  }
};

// eight factors, then eight minima, of 32 elements each
struct ScaleMin {
  HWY_ALIGN float d_m[16];
  HWY_INLINE V32 d(int j) const { return all(d_m[j]); }
  HWY_INLINE V32 m(int j) const { return all(d_m[8 + j]); }
};

// q4_k and q5_k: eight 6-bit scales and eight minima in 12 bytes, four bytes in a word
HWY_INLINE VS scale_codes_k4(const uint8_t* b) {
  const uint32_t a0 = word_at(b + 4), a1 = word_at(b + 8), a2 = word_at(b + 12);
  const auto first = [](uint32_t six) HWY_ATTR { return six & 0x3f3f3f3fu; };
  const auto last = [](uint32_t nibbles, uint32_t pairs)
                        HWY_ATTR { return (nibbles & 0x0f0f0f0fu) | ((pairs >> 2) & 0x30303030u); };
  return scale_bytes(joined(first(a0), last(a2, a0)), joined(first(a1), last(a2 >> 4, a1)));
}
HWY_INLINE void read_scales_k4(const uint8_t* b, ScaleMin& s) {
  const V32 d = all_half(b), dmin = all_half(b + 2);
  each_of_bytes(ScaleBytes(), scale_codes_k4(b), 0, [&](int i, VI v) HWY_ATTR {
    V32 factor = i < 8 ? d : dmin;
    if constexpr (kLanes == 16) factor = hn::IfThenElse(hn::FirstN(F32(), 8), d, dmin);
    store(scaled(v, factor), s.d_m + i);
  });
}

struct Q4K {
  static constexpr int elements = 256, bytes = 144, group_elements = 64;
  static constexpr int run = 32, offset = 0;
  static constexpr bool minimum = true;
  static HWY_INLINE VB codes(const uint8_t* b, int g, int i) {
    return byte_bits(b + 16 + 32 * (g / 2) + i, 4 * (g % 2), 15);
  }
  static constexpr int d_at = 0, m_at = 2;
  static HWY_INLINE VS scale_codes(const uint8_t* b) { return scale_codes_k4(b); }
  using Scales = ScaleMin;
  static HWY_INLINE void read_scales(const uint8_t* b, Scales& s) { read_scales_k4(b, s); }
  template <class Emit>
  static HWY_INLINE void group(const uint8_t* b, const Scales& s, int g, const Emit& emit) {
    const auto codes = [&](int j) HWY_ATTR {
      const V32 d = s.d(j), m = s.m(j);
      return FourBits([d, m](VI q) HWY_ATTR { return scaled_minus(q, d, m); });
    };
    const auto first = codes(2 * g), second = codes(2 * g + 1);
    VI v[32 / kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < 32 / kLanes; ++i) {
      v[i] = unsigned_bytes(b + 16 + 32 * g + i * kLanes);
      emit(64 * g + i * kLanes, first.low(v[i]));
    }
#pragma GCC unroll 8
    for (int i = 0; i < 32 / kLanes; ++i) emit(64 * g + 32 + i * kLanes, second.high(v[i]));
  }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    unpack_groups<Q4K>(b, emit);
  }
};

struct Q5K {
  static constexpr int elements = 256, bytes = 176, group_elements = 32;
  static constexpr int run = 32, offset = 0;
  static constexpr bool minimum = true;
  static HWY_INLINE VB codes(const uint8_t* b, int g, int i) {
    return join_bits<4>(byte_bits(b + 48 + 32 * (g / 2) + i, 4 * (g % 2), 15),
                        byte_bits(b + 16 + i, g, 1));
  }
  static constexpr int d_at = 0, m_at = 2;
  static HWY_INLINE VS scale_codes(const uint8_t* b) { return scale_codes_k4(b); }
  using Scales = ScaleMin;
  static HWY_INLINE void read_scales(const uint8_t* b, Scales& s) { read_scales_k4(b, s); }
  template <class Emit>
  static HWY_INLINE void group(const uint8_t* b, const Scales& s, int g, const Emit& emit) {
    const V32 d = s.d(g), m = s.m(g);
#pragma GCC unroll 2
    for (int i = 0; i < 32; i += kBytes)
      each_of_bytes(Bytes(), codes(b, g, i), 32 * g + i,
                    [&](int e, VI q) HWY_ATTR { emit(e, scaled_minus(q, d, m)); });
  }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    unpack_groups<Q5K>(b, emit);
  }
};

struct Q6K {
  static constexpr int elements = 256, bytes = 210, group_elements = 32;
  static constexpr int run = 16, offset = 32;
  static constexpr bool minimum = false;
  static HWY_INLINE VB codes(const uint8_t* b, int g, int i) {
    const int half = g / 4, quarter = g % 4;
    return join_bits<4>(byte_bits(b + 64 * half + 32 * (quarter % 2) + i, quarter / 2 * 4, 15),
                        byte_bits(b + 128 + 32 * half + i, 2 * quarter, 3));
  }
  static constexpr int d_at = 208;
  static HWY_INLINE VS scale_codes(const uint8_t* b) { return hn::LoadU(ScaleBytes(), b + 192); }
  using Scales = Factors;
  static HWY_INLINE void read_scales(const uint8_t* b, Scales& s) {
    const V32 d = all_half(b + d_at);
    for (int i = 0; i < 16; i += kLanes) store(scaled(signed_bytes(b + 192 + i), d), s.d + i);
  }
  template <class Emit>
  static HWY_INLINE void group(const uint8_t* b, const Scales& s, int g, const Emit& emit) {
#pragma GCC unroll 2
    for (int i = 0; i < 32; i += kBytes)
      each_of_bytes(hn::RebindToSigned<Bytes>(), signed_from(codes(b, g, i), offset), 32 * g + i,
                    [&](int e, VI q) HWY_ATTR { emit(e, scaled(q, all(s.d[e / 16]))); });
  }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    unpack_groups<Q6K>(b, emit);
  }
};

struct Iq4Xs {
  static constexpr int elements = 256, bytes = 136, group_elements = 32;
  static constexpr int run = 32, offset = 128;
  static constexpr bool minimum = false;
  static HWY_INLINE VB codes(const uint8_t* b, int g, int i) {
    return level_codes(b + 8 + 16 * g, i);
  }
  // eight 6-bit scales: pairs of bits in a word of two bytes, then nibbles
  static constexpr int d_at = 0;
  static HWY_INLINE VS scale_codes(const uint8_t* b) {
    uint64_t low = 0;
    const uint32_t high = word_at(b) >> 16, nibbles = word_at(b + 4);
    for (int g = 0; g < 8; ++g)
      low |= uint64_t{(nibbles >> 4 * g & 15) | (high >> 2 * g & 3) << 4} << 8 * g;
    return hn::Sub(scale_bytes(low, 0), hn::Set(ScaleBytes(), uint8_t{32}));
  }
  using Scales = Factors;
  static HWY_INLINE void read_scales(const uint8_t* b, Scales& s) {
    const V32 d = all_half(b + d_at);
    const hn::RebindToSigned<ScaleBytes> of_signs;
    each_of_bytes(of_signs, hn::BitCast(of_signs, scale_codes(b)), 0,
                  [&](int i, VI v) HWY_ATTR { store(scaled(v, d), s.d + i); });
  }
  template <class Emit>
  static HWY_INLINE void group(const uint8_t* b, const Scales& s, int g, const Emit& emit) {
#pragma GCC unroll 2
    for (int i = 0; i < 32; i += kBytes)
      each_of_bytes(hn::RebindToSigned<Bytes>(), signed_from(codes(b, g, i), offset), 32 * g + i,
                    [&](int e, VI q) HWY_ATTR { emit(e, scaled(q, all(s.d[g]))); });
  }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    unpack_groups<Iq4Xs>(b, emit);
  }
};

// a block of 32, here as it is unpacked like a group of those above
struct Iq4Nl {
  static constexpr int elements = 32, bytes = 18;
  static constexpr int run = 32, offset = 128;
  static constexpr bool minimum = false;
  static HWY_INLINE VB codes(const uint8_t* b, int, int i) { return level_codes(b + 2, i); }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    const V32 d = all_half(b);
#pragma GCC unroll 2
    for (int i = 0; i < 32; i += kBytes)
      each_of_bytes(hn::RebindToSigned<Bytes>(), signed_from(codes(b, 0, i), offset), i,
                    [&](int e, VI q) HWY_ATTR { emit(e, scaled(q, d)); });
  }
};

// --- code books and ternary numbers --------------------------------------------------------------

// Types of 256 whose groups of 32 are looked up, or taken apart, as signed bytes: `lookup(block, g,
// bytes)`. A number is one of 16 factors, of 16 elements each, times its byte.
template <class Type, int bytes_>
struct LookedUp {
  static constexpr int elements = 256, bytes = bytes_, group_elements = 32;
  using Scales = Factors;
  template <class Emit>
  static HWY_INLINE void group(const uint8_t* b, const Scales& s, int g, const Emit& emit) {
    HWY_ALIGN uint8_t numbers[32];
    Type::lookup(b, g, numbers);
#pragma GCC unroll 8
    for (int e = 0; e < 32; e += kLanes)
      emit(32 * g + e, scaled(signed_bytes(numbers + e), all(s.d[2 * g + e / 16])));
  }
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    unpack_groups<Type>(b, emit);
  }
  static HWY_INLINE void put(uint8_t* numbers, int eight, uint64_t word) {
    std::memcpy(numbers + 8 * eight, &word, sizeof word);
  }
  static HWY_INLINE float half_number(const uint8_t* p) {
    return f16_to_float(static_cast<uint16_t>(p[0] | p[1] << 8));
  }
};

// seven bits of signs for each of four eights, and a factor in the uppermost four, in a word
HWY_INLINE uint8_t signs_of_word(uint32_t word, int eight) {
  return kCodeBooks.even_signs[word >> (7 * eight) & 127];
}

struct Iq2Xxs : LookedUp<Iq2Xxs, 66> {
  static HWY_INLINE void read_scales(const uint8_t* b, Factors& s) {
    const float d = half_number(b) * 0.125f;
    for (int g = 0; g < 8; ++g)
      s.d[2 * g] = s.d[2 * g + 1] = d * static_cast<float>(2 * (word_at(b + 6 + 8 * g) >> 28) + 1);
  }
  static HWY_INLINE void lookup(const uint8_t* b, int g, uint8_t* to) {
    const uint8_t* index = b + 2 + 8 * g;
    const uint32_t word = word_at(index + 4);
    for (int i = 0; i < 4; ++i)
      put(to, i, with_signs(kCodeBooks.iq2_xxs[index[i]], signs_of_word(word, i)));
  }
};

struct Iq2Xs : LookedUp<Iq2Xs, 74> {
  static HWY_INLINE void read_scales(const uint8_t* b, Factors& s) {
    const float d = half_number(b) * 0.125f;
    for (int j = 0; j < 16; ++j)
      s.d[j] = d * static_cast<float>(2 * (b[66 + j / 2] >> (4 * (j % 2)) & 15) + 1);
  }
  static HWY_INLINE void lookup(const uint8_t* b, int g, uint8_t* to) {
    for (int i = 0; i < 4; ++i) {
      const uint8_t* at = b + 2 + 8 * g + 2 * i;
      const int index = at[0] | at[1] << 8;
      put(to, i, with_signs(kCodeBooks.iq2_xs[index & 511], kCodeBooks.even_signs[index >> 9]));
    }
  }
};

struct Iq2S : LookedUp<Iq2S, 82> {
  static HWY_INLINE void read_scales(const uint8_t* b, Factors& s) {
    const float d = half_number(b) * 0.125f;
    for (int j = 0; j < 16; ++j)
      s.d[j] = d * static_cast<float>(2 * (b[74 + j / 2] >> (4 * (j % 2)) & 15) + 1);
  }
  static HWY_INLINE void lookup(const uint8_t* b, int g, uint8_t* to) {
    for (int i = 0; i < 4; ++i) {
      const int index = b[2 + 4 * g + i] | (b[66 + g] >> (2 * i) & 3) << 8;
      put(to, i, with_signs(kCodeBooks.iq2_s[index], b[34 + 4 * g + i]));
    }
  }
};

HWY_INLINE uint64_t two_words(uint32_t low, uint32_t high) {
  return low | uint64_t{high} << 32;
}

struct Iq3Xxs : LookedUp<Iq3Xxs, 98> {
  static HWY_INLINE void read_scales(const uint8_t* b, Factors& s) {
    const float d = half_number(b) * 0.25f;
    for (int g = 0; g < 8; ++g)
      s.d[2 * g] = s.d[2 * g + 1] = d * static_cast<float>(2 * (word_at(b + 66 + 4 * g) >> 28) + 1);
  }
  static HWY_INLINE void lookup(const uint8_t* b, int g, uint8_t* to) {
    const uint8_t* index = b + 2 + 8 * g;
    const uint32_t word = word_at(b + 66 + 4 * g);
    for (int i = 0; i < 4; ++i)
      put(to, i,
          with_signs(
              two_words(kCodeBooks.iq3_xxs[index[2 * i]], kCodeBooks.iq3_xxs[index[2 * i + 1]]),
              signs_of_word(word, i)));
  }
};

struct Iq3S : LookedUp<Iq3S, 110> {
  static HWY_INLINE void read_scales(const uint8_t* b, Factors& s) {
    const float d = half_number(b);
    for (int g = 0; g < 8; ++g)
      s.d[2 * g] = s.d[2 * g + 1] =
          d * static_cast<float>(2 * (b[106 + g / 2] >> (4 * (g % 2)) & 15) + 1);
  }
  static HWY_INLINE void lookup(const uint8_t* b, int g, uint8_t* to) {
    const auto four = [&](int j) HWY_ATTR {
      return kCodeBooks.iq3_s[static_cast<size_t>(b[2 + 8 * g + j] | (b[66 + g] >> j & 1) << 8)];
    };
    for (int i = 0; i < 4; ++i)
      put(to, i, with_signs(two_words(four(2 * i), four(2 * i + 1)), b[74 + 4 * g + i]));
  }
};

// numbers of IQ1: 8 times -1, 0 or 1, and 1 more or less
HWY_INLINE uint64_t moved_by_one(uint64_t bytes, bool down) {
  constexpr uint64_t kUpper = 0x8080808080808080u, kOnes = 0x0101010101010101u;
  // byte by byte, without what one would carry into the next
  const uint64_t by = down ? ~uint64_t{0} : kOnes;
  return ((bytes & ~kUpper) + (by & ~kUpper)) ^ ((bytes ^ by) & kUpper);
}

struct Iq1S : LookedUp<Iq1S, 50> {
  static HWY_INLINE int high(const uint8_t* b, int g) { return b[34 + 2 * g] | b[35 + 2 * g] << 8; }
  static HWY_INLINE void read_scales(const uint8_t* b, Factors& s) {
    const float d = half_number(b) * 0.125f;
    for (int g = 0; g < 8; ++g)
      s.d[2 * g] = s.d[2 * g + 1] = d * static_cast<float>(2 * (high(b, g) >> 12 & 7) + 1);
  }
  static HWY_INLINE void lookup(const uint8_t* b, int g, uint8_t* to) {
    const int more = high(b, g);
    for (int i = 0; i < 4; ++i) {
      const int index = b[2 + 4 * g + i] | (more >> (3 * i) & 7) << 8;
      put(to, i, moved_by_one(kCodeBooks.iq1[static_cast<size_t>(index)], (more & 0x8000) != 0));
    }
  }
};

struct Iq1M : LookedUp<Iq1M, 56> {
  static HWY_INLINE int scale(const uint8_t* b, int word) {
    return b[48 + 2 * word] | b[49 + 2 * word] << 8;
  }
  static HWY_INLINE void read_scales(const uint8_t* b, Factors& s) {
    // a half in the uppermost four bits of four words
    int bits = 0;
    for (int i = 0; i < 4; ++i) bits |= (scale(b, i) >> 12) << (4 * i);
    const float d = f16_to_float(static_cast<uint16_t>(bits)) * 0.125f;
    for (int j = 0; j < 16; ++j)
      s.d[j] = d * static_cast<float>(2 * (scale(b, j / 4) >> (3 * (j % 4)) & 7) + 1);
  }
  static HWY_INLINE void lookup(const uint8_t* b, int g, uint8_t* to) {
    for (int i = 0; i < 4; ++i) {
      const int more = b[32 + 2 * g + i / 2] >> (4 * (i % 2)) & 15;
      const int index = b[4 * g + i] | (more & 7) << 8;
      put(to, i, moved_by_one(kCodeBooks.iq1[static_cast<size_t>(index)], (more & 8) != 0));
    }
  }
};

// -1, 0 and 1 times one factor, the half at d_at
template <class Type, int bytes_>
struct Ternary : LookedUp<Type, bytes_> {
  static constexpr int run = 32, offset = 1, d_at = bytes_ - 2;
  static constexpr bool minimum = false, one_factor = true;
  static HWY_INLINE void read_scales(const uint8_t* b, Factors& s) {
    const float d = LookedUp<Type, bytes_>::half_number(b + d_at);
    for (float& factor : s.d) factor = d;
  }
  static HWY_INLINE void lookup(const uint8_t* b, int g, uint8_t* to) {
#pragma GCC unroll 2
    for (int i = 0; i < 32; i += kBytes)
      hn::StoreU(hn::Sub(Type::codes(b, g, i), hn::Set(Bytes(), uint8_t{1})), Bytes(), to + i);
  }
};

// Digits of base 3 of bytes, read as fractions of 256, from the uppermost on: what is left of them
// for digit `digit`, and the digit before that, floor(3 rest / 256).
HWY_INLINE VB ternary_rest(VB v, int digit) {
  for (int i = 0; i < digit; ++i) v = hn::Add(hn::Add(v, v), v);
  return v;
}
template <class D, class V>
HWY_INLINE V ternary_digit(D d, V rest) {
  const V one = hn::Set(d, uint8_t{1});
  return hn::Add(hn::Min(hn::SaturatedSub(rest, hn::Set(d, uint8_t{85})), one),
                 hn::Min(hn::SaturatedSub(rest, hn::Set(d, uint8_t{170})), one));
}

struct Tq1_0 : Ternary<Tq1_0, 54> {
  // five digits of 32 bytes, five of 16, and four of 4
  static HWY_INLINE VB codes(const uint8_t* b, int g, int i) {
    if (g < 5) return ternary_digit(Bytes(), ternary_rest(hn::LoadU(Bytes(), b + i), g));
    HWY_ALIGN uint8_t rest[32];
    const int first = 2 * (g - 5);
    for (int e = 0; e < 16; ++e) {
      rest[e] = static_cast<uint8_t>(b[32 + e] * power(first));
      rest[16 + e] = g < 7 ? static_cast<uint8_t>(b[32 + e] * power(first + 1))
                           : static_cast<uint8_t>(b[48 + e % 4] * power(e / 4));
    }
    return ternary_digit(Bytes(), hn::LoadU(Bytes(), rest + i));
  }

 private:
  static HWY_INLINE int power(int digit) {
    constexpr int kPowers[] = {1, 3, 9, 27, 81};
    return kPowers[digit];
  }
};

struct Tq2_0 : Ternary<Tq2_0, 66> {
  static HWY_INLINE VB codes(const uint8_t* b, int g, int i) {
    return byte_bits(b + 32 * (g / 4) + i, 2 * (g % 4), 3);
  }
};

// --- plain floats --------------------------------------------------------------------------------

// As blocks of one vector; the end of a row that fills none is rest(block, n): the last n < kLanes
// values, zeros above.
template <V32 (*convert)(const uint16_t*)>
struct Halves {
  static constexpr int elements = kLanes, bytes = 2 * kLanes;
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    emit(0, convert(reinterpret_cast<const uint16_t*>(b)));  // LoadU: any alignment
  }
  static HWY_INLINE V32 rest(const uint8_t* b, int64_t n) {
    HWY_ALIGN uint16_t part[kLanes] = {};
    std::memcpy(part, b, static_cast<size_t>(n) * 2);
    return convert(part);
  }
};
using F16 = Halves<halves>;
using BF16 = Halves<bf16s>;

struct Floats {
  static constexpr int elements = kLanes, bytes = 4 * kLanes;
  template <class Emit>
  static HWY_INLINE void unpack(const uint8_t* b, const Emit& emit) {
    emit(0, load(reinterpret_cast<const float*>(b)));
  }
  static HWY_INLINE V32 rest(const uint8_t* b, int64_t n) {
    return load_part(reinterpret_cast<const float*>(b), n);
  }
};

template <class Block>
constexpr bool is_plain = Block::bytes >= 2 * Block::elements;

/// Whether a block's values are codes (digits.cpp).
template <class Block>
concept HasCodes = requires {
  Block::offset;
};
/// Whether a block of 256 has one factor for all of its values.
template <class Block>
concept OneFactor = requires {
  Block::one_factor;
};

/// Calls body.template operator()<Block>() for any readable type.
template <class Body>
HWY_INLINE void with_block(DType type, const Body& body) {
  switch (type) {
    case DType::f32:
      return body.template operator()<Floats>();
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
    case DType::mxfp4:
      return body.template operator()<MxFp4>();
    case DType::iq4_nl:
      return body.template operator()<Iq4Nl>();
    case DType::iq4_xs:
      return body.template operator()<Iq4Xs>();
    case DType::iq1_s:
      return body.template operator()<Iq1S>();
    case DType::iq1_m:
      return body.template operator()<Iq1M>();
    case DType::iq2_xxs:
      return body.template operator()<Iq2Xxs>();
    case DType::iq2_xs:
      return body.template operator()<Iq2Xs>();
    case DType::iq2_s:
      return body.template operator()<Iq2S>();
    case DType::iq3_xxs:
      return body.template operator()<Iq3Xxs>();
    case DType::iq3_s:
      return body.template operator()<Iq3S>();
    case DType::tq1_0:
      return body.template operator()<Tq1_0>();
    case DType::tq2_0:
      return body.template operator()<Tq2_0>();
    case DType::scaled_u4:
      return body.template operator()<ScaledU4>();
    case DType::scaled_i8:
      return body.template operator()<ScaledI8>();
    case DType::scaled_e4m3:
      return body.template operator()<ScaledE4m3>();
    default:
      return;
  }
}

// --- runs of blocks ------------------------------------------------------------------------------

// Asks for the memory that comes next: hardware stops at the end of a page.
HWY_INLINE void prefetch(const uint8_t* p) {
  __builtin_prefetch(p);
}

template <class Block>
HWY_NOINLINE void dequantize_blocks(const uint8_t* src, int64_t n, float* dst) {
  constexpr int kAhead = 2048;
  int64_t i = 0;
  for (; i + Block::elements <= n; i += Block::elements, src += Block::bytes) {
#pragma GCC unroll 8
    for (int line = 0; line < Block::bytes; line += 64) prefetch(src + kAhead + line);
    Block::unpack(src, [&](int e, V32 v) HWY_ATTR { store(v, dst + i + e); });
  }
  if constexpr (is_plain<Block>)
    if (i < n) store_part(Block::rest(src, n - i), dst + i, n - i);
}

// n values, whole blocks of the type, at src
HWY_INLINE void dequantize_run(DType type, const uint8_t* src, int64_t n, float* dst) {
  with_block(type, [&]<class Block>() HWY_ATTR { dequantize_blocks<Block>(src, n, dst); });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
