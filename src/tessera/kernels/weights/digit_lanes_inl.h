// Sixteen rows of w in the lanes of a vector, for products of few rows of x on AVX-512
// (digits.cpp).
//
// Bytes of sixteen rows are transposed as they are stored, with two to four codes in each: codes
// are then taken apart, and scales decoded, for all rows at once, the products of a run of codes
// add up within lanes, and numbers of x are broadcast from memory.
#if defined(TESSERA_KERNELS_DIGIT_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_DIGIT_LANES_INL_H_
#undef TESSERA_KERNELS_DIGIT_LANES_INL_H_
#else
#define TESSERA_KERNELS_DIGIT_LANES_INL_H_
#endif

#include <type_traits>
#include <utility>

#include "tessera/kernels/weights/blocks_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

// of lambdas: what they capture stays in registers
#define LANES_INLINE HWY_ATTR __attribute__((always_inline))

// The blocks of sixteen rows at the same place.
class LaneRows {
 public:
  HWY_INLINE LaneRows(const uint8_t* first, int64_t stride)
      : fourth_{first, first + 4 * stride, first + 8 * stride, first + 12 * stride},
        stride_(stride) {}

  HWY_INLINE void advance(int bytes) {
    for (const uint8_t*& p : fourth_) p += bytes;
  }
  // words 0 .. 4 of the 16 bytes from `at` on, row r's in lane r
  HWY_INLINE void words(int at, VI* to) const {
    const Halves h = interleaved(at);
    to[0] = lower(h.low[0], h.low[1]);
    to[1] = upper(h.low[0], h.low[1]);
    to[2] = lower(h.high[0], h.high[1]);
    to[3] = upper(h.high[0], h.high[1]);
  }
  // one of them
  template <int i>
  HWY_INLINE VI word(int at) const {
    const Halves h = interleaved(at);
    const auto& v = i < 2 ? h.low : h.high;
    return i % 2 == 0 ? lower(v[0], v[1]) : upper(v[0], v[1]);
  }
  // the first two
  HWY_INLINE void two_words(int at, VI& first, VI& second) const {
    const Halves h = interleaved(at);
    first = lower(h.low[0], h.low[1]);
    second = upper(h.low[0], h.low[1]);
  }

 private:
  struct Halves {
    VI low[2], high[2];
  };
  static HWY_INLINE VI lower(VI a, VI b) { return VI{_mm512_unpacklo_epi64(a.raw, b.raw)}; }
  static HWY_INLINE VI upper(VI a, VI b) { return VI{_mm512_unpackhi_epi64(a.raw, b.raw)}; }

  // rows q, q + 4, q + 8 and q + 12
  HWY_INLINE VI sixteen(int at, int q) const {
    const int64_t offset = q * stride_ + at;
    const auto part = [&](int i) HWY_ATTR {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(fourth_[i] + offset));
    };
    __m512i v = _mm512_zextsi128_si512(part(0));
    v = _mm512_inserti32x4(v, part(1), 1);
    v = _mm512_inserti32x4(v, part(2), 2);
    return VI{_mm512_inserti32x4(v, part(3), 3)};
  }
  HWY_INLINE Halves interleaved(int at) const {
    const I32 d;
    const VI a = sixteen(at, 0), b = sixteen(at, 1), c = sixteen(at, 2), e = sixteen(at, 3);
    return {{hn::InterleaveLower(d, a, b), hn::InterleaveLower(d, c, e)},
            {hn::InterleaveUpper(d, a, b), hn::InterleaveUpper(d, c, e)}};
  }

  const uint8_t* fourth_[4];
  int64_t stride_;
};

HWY_INLINE VI bytes_all(uint32_t byte) {
  return int_all(static_cast<int32_t>(byte * 0x01010101u));
}
// right by n bits, left where it is negative
template <int n>
HWY_INLINE VI moved(VI v) {
  if constexpr (n > 0)
    return hn::ShiftRight<n>(v);
  else if constexpr (n < 0)
    return hn::ShiftLeft<-n>(v);
  else
    return v;
}
// bits n .. of each byte: as many as the mask has
template <int n, int mask>
HWY_INLINE VI bits_of_bytes(VI v) {
  return hn::And(moved<n>(v), bytes_all(mask));
}
// the same, of bits that join others
template <int n, int mask>
HWY_INLINE VI with_bits(VI low, VI v) {
  return hn::OrAnd(low, moved<n>(v), bytes_all(mask));
}
// byte i of each lane
template <int i>
HWY_INLINE VI byte_of(VI v) {
  return hn::And(moved<8 * i>(v), int_all(255));
}
template <int i>
HWY_INLINE VI signed_byte_of(VI v) {
  return hn::ShiftRight<24>(moved<8 * i - 24>(v));
}
// the halves in the lower 16 bits of each lane
HWY_INLINE V32 lower_halves(VI v) {
  return V32{_mm512_cvtph_ps(_mm512_cvtepi32_epi16(v.raw))};
}
HWY_INLINE V32 upper_halves(VI v) {
  return lower_halves(hn::ShiftRight<16>(v));
}
// bytes 2 .. 6 of eight
HWY_INLINE VI middle_word(VI low, VI high) {
  return VI{_mm512_shrdi_epi32(low.raw, high.raw, 16)};
}
HWY_INLINE VI from_table(const uint8_t* sixteen, VI codes) {
  const hn::Repartition<uint8_t, I32> d;
  return hn::BitCast(I32(), hn::TableLookupBytes(hn::LoadDup128(d, sixteen), codes));
}

// `body` of the constants 0 .. count
template <int count, class Body>
HWY_INLINE void each_constant(const Body& body) {
  [&]<int... i>(std::integer_sequence<int, i...>) LANES_INLINE {
    (body(std::integral_constant<int, i>()), ...);
  }
  (std::make_integer_sequence<int, count>());
}

// The block at the same place of sixteen rows: factor<t>() and minimum<t>() of run t, and
// each_group(rows, use), which calls use(constant g, eight words of codes) for its groups of 32.
template <class Block>
struct LaneBlock;

// --- blocks of 32 --------------------------------------------------------------------------------

// one factor, and where there are minima one of them
struct LaneFactor {
  V32 d, m;
  template <int>
  HWY_INLINE V32 factor() const {
    return d;
  }
  template <int>
  HWY_INLINE V32 minimum() const {
    return m;
  }
};

using FirstGroup = std::integral_constant<int, 0>;

// codes of four bits from 16 bytes at `at`
template <class Value, class Use>
HWY_INLINE void lane_nibbles(const LaneRows& rows, int at, const Value& value, const Use& use) {
  VI packed[4], codes[8];
  rows.words(at, packed);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    codes[i] = value(bits_of_bytes<0, 15>(packed[i]));
    codes[4 + i] = value(bits_of_bytes<4, 15>(packed[i]));
  }
  use(codes);
}
struct AsTheyAre {
  HWY_INLINE VI operator()(VI codes) const { return codes; }
};

template <>
struct LaneBlock<Q4_0> : LaneFactor {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows)
      : LaneFactor{lower_halves(rows.word<0>(0)), zero()} {}
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    lane_nibbles(rows, 2, AsTheyAre(),
                 [&](const VI(&codes)[8]) LANES_INLINE { use(FirstGroup(), codes); });
  }
};

template <>
struct LaneBlock<Q4_1> : LaneFactor {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows) {
    const VI both = rows.word<0>(0);
    d = lower_halves(both);
    m = upper_halves(both);
  }
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    lane_nibbles(rows, 4, AsTheyAre(),
                 [&](const VI(&codes)[8]) LANES_INLINE { use(FirstGroup(), codes); });
  }
};

// with a fifth bit from bit e of each row's word for code e
template <class Use>
HWY_INLINE void lane_five_bits(const LaneRows& rows, int at, VI word, const Use& use) {
  lane_nibbles(rows, at, AsTheyAre(), [&](const VI(&low)[8]) LANES_INLINE {
    VI codes[8];
    each_constant<8>([&](auto i) LANES_INLINE {
      // bit 4 of byte j becomes bit 4 i + j of the word: the eight bits of the pair of words from
      // 4 i + j - 4 on
      constexpr uint64_t kFirst = 4 * decltype(i)::value + 60;
      constexpr uint64_t kEven = (kFirst & 63) | ((kFirst + 1) & 63) << 8 |
                                 ((kFirst + 2) & 63) << 16 | ((kFirst + 3) & 63) << 24;
      constexpr uint64_t kOdd = kEven ^ 0x20202020u;
      const VI fifth{_mm512_multishift_epi64_epi8(
          _mm512_set1_epi64(static_cast<int64_t>(kEven | kOdd << 32)), word.raw)};
      codes[i] = with_bits<0, 16>(low[i], fifth);
    });
    use(FirstGroup(), codes);
  });
}

template <>
struct LaneBlock<Q5_0> : LaneFactor {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows) {
    VI first, second;
    rows.two_words(0, first, second);
    d = lower_halves(first);
    m = zero();
    fifth = middle_word(first, second);
  }
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    lane_five_bits(rows, 6, fifth, use);
  }
  VI fifth;
};

template <>
struct LaneBlock<Q5_1> : LaneFactor {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows) {
    VI both;
    rows.two_words(0, both, fifth);
    d = lower_halves(both);
    m = upper_halves(both);
  }
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    lane_five_bits(rows, 8, fifth, use);
  }
  VI fifth;
};

// 32 signed bytes
template <class Use>
HWY_INLINE void lane_bytes(const LaneRows& rows, int at, const Use& use) {
  VI codes[8];
  rows.words(at, codes);
  rows.words(at + 16, codes + 4);
#pragma GCC unroll 8
  for (VI& v : codes) v = hn::Xor(v, bytes_all(128));
  use(FirstGroup(), codes);
}

template <>
struct LaneBlock<Q8_0> : LaneFactor {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows)
      : LaneFactor{lower_halves(rows.word<0>(0)), zero()} {}
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    lane_bytes(rows, 2, use);
  }
};

template <>
struct LaneBlock<MxFp4> : LaneFactor {
  // half_of_e8m0()
  explicit HWY_INLINE LaneBlock(const LaneRows& rows) {
    const VI exponent = hn::Sub(byte_of<0>(rows.word<0>(0)), int_all(1));
    d = hn::BitCast(F32(), hn::ShiftLeft<23>(hn::Max(exponent, int_all(0))));
    m = zero();
  }
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    lane_nibbles(
        rows, 1, [](VI codes) HWY_ATTR { return from_table(MxFp4::kCodes, codes); },
        [&](const VI(&codes)[8]) LANES_INLINE { use(FirstGroup(), codes); });
  }
};

template <>
struct LaneBlock<Iq4Nl> : LaneFactor {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows)
      : LaneFactor{lower_halves(rows.word<0>(0)), zero()} {}
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    lane_nibbles(
        rows, 2, [](VI codes) HWY_ATTR { return from_table(kLevelCodes, codes); },
        [&](const VI(&codes)[8]) LANES_INLINE { use(FirstGroup(), codes); });
  }
};

// a float, and a zero
struct LaneZero : LaneFactor {
  HWY_INLINE LaneZero(VI bits, VI zeros) {
    d = hn::BitCast(F32(), bits);
    m = hn::Neg(hn::Mul(d, to_float(zeros)));
  }
};

template <>
struct LaneBlock<ScaledU4> : LaneZero {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows)
      : LaneZero(rows.word<0>(0), byte_of<0>(rows.word<0>(4))) {}
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    lane_nibbles(rows, 5, AsTheyAre(),
                 [&](const VI(&codes)[8]) LANES_INLINE { use(FirstGroup(), codes); });
  }
};

template <>
struct LaneBlock<ScaledI8> : LaneZero {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows)
      : LaneZero(rows.word<0>(0), hn::ShiftRight<16>(hn::ShiftLeft<16>(rows.word<0>(4)))) {}
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    lane_bytes(rows, 6, use);
  }
};

// --- blocks of 256 -------------------------------------------------------------------------------

// sixteen or eight signed bytes of scales, four in a word
struct LaneScales {
  V32 d;
  VI words[4];
  template <int t>
  HWY_INLINE V32 factor() const {
    return hn::Mul(d, to_float(signed_byte_of<t % 4>(words[t / 4])));
  }
  template <int>
  HWY_INLINE V32 minimum() const {
    return zero();
  }
};

template <>
struct LaneBlock<Q2K> {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows) {
    rows.words(0, words);
    const VI both = rows.word<3>(Q2K::d_at - 12);
    d = lower_halves(both);
    m = hn::Neg(upper_halves(both));
  }
  template <int t>
  HWY_INLINE V32 factor() const {
    return hn::Mul(d, to_float(hn::And(moved<t % 4 * 8>(words[t / 4]), int_all(15))));
  }
  template <int t>
  HWY_INLINE V32 minimum() const {
    return hn::Mul(m, to_float(hn::And(moved<t % 4 * 8 + 4>(words[t / 4]), int_all(15))));
  }
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    each_constant<2>([&](auto half) LANES_INLINE {
      VI packed[8];
      rows.words(16 + 32 * half, packed);
      rows.words(32 + 32 * half, packed + 4);
      each_constant<4>([&](auto quarter) LANES_INLINE {
        VI codes[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) codes[i] = bits_of_bytes<2 * quarter, 3>(packed[i]);
        use(std::integral_constant<int, 4 * half + quarter>(), codes);
      });
    });
  }
  V32 d, m;
  VI words[4];
};

template <>
struct LaneBlock<Q3K> : LaneScales {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows) {
    VI v[4];
    rows.words(Q3K::bytes - 16, v);
    d = upper_halves(v[3]);
    const VI a0 = middle_word(v[0], v[1]), a1 = middle_word(v[1], v[2]),
             high = middle_word(v[2], v[3]);
    const auto four = [](VI nibbles, VI pairs) HWY_ATTR {
      const hn::Repartition<uint8_t, I32> d8;
      const VI six = hn::OrAnd(nibbles, pairs, bytes_all(0x30));
      return hn::BitCast(I32(), hn::Sub(hn::BitCast(d8, six), hn::BitCast(d8, bytes_all(32))));
    };
    words[0] = four(bits_of_bytes<0, 15>(a0), hn::ShiftLeft<4>(high));
    words[1] = four(bits_of_bytes<0, 15>(a1), hn::ShiftLeft<2>(high));
    words[2] = four(bits_of_bytes<4, 15>(a0), high);
    words[3] = four(bits_of_bytes<4, 15>(a1), hn::ShiftRight<2>(high));
  }
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    VI third[8];
    rows.words(0, third);
    rows.words(16, third + 4);
    each_constant<2>([&](auto half) LANES_INLINE {
      VI packed[8];
      rows.words(32 + 32 * half, packed);
      rows.words(48 + 32 * half, packed + 4);
      each_constant<4>([&](auto quarter) LANES_INLINE {
        constexpr int g = 4 * half + quarter;
        VI codes[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i)
          codes[i] = with_bits<g - 2, 4>(bits_of_bytes<2 * quarter, 3>(packed[i]), third[i]);
        use(std::integral_constant<int, g>(), codes);
      });
    });
  }
};

// q4_k and q5_k (scale_codes_k4)
struct LaneScalesK4 {
  explicit HWY_INLINE LaneScalesK4(const LaneRows& rows) {
    VI v[4];
    rows.words(0, v);
    d = lower_halves(v[0]);
    m = hn::Neg(upper_halves(v[0]));
    const auto last = [](VI nibbles, VI pairs)
                          HWY_ATTR { return with_bits<2, 0x30>(nibbles, pairs); };
    scales[0] = bits_of_bytes<0, 0x3f>(v[1]);
    scales[1] = last(bits_of_bytes<0, 15>(v[3]), v[1]);
    minima[0] = bits_of_bytes<0, 0x3f>(v[2]);
    minima[1] = last(bits_of_bytes<4, 15>(v[3]), v[2]);
  }
  template <int t>
  HWY_INLINE V32 factor() const {
    return hn::Mul(d, to_float(byte_of<t % 4>(scales[t / 4])));
  }
  template <int t>
  HWY_INLINE V32 minimum() const {
    return hn::Mul(m, to_float(byte_of<t % 4>(minima[t / 4])));
  }
  V32 d, m;
  VI scales[2], minima[2];
};

template <>
struct LaneBlock<Q4K> : LaneScalesK4 {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows) : LaneScalesK4(rows) {}
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    each_constant<4>([&](auto pair) LANES_INLINE {
      VI packed[8];
      rows.words(16 + 32 * pair, packed);
      rows.words(32 + 32 * pair, packed + 4);
      each_constant<2>([&](auto high) LANES_INLINE {
        VI codes[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) codes[i] = bits_of_bytes<4 * high, 15>(packed[i]);
        use(std::integral_constant<int, 2 * pair + high>(), codes);
      });
    });
  }
};

template <>
struct LaneBlock<Q5K> : LaneScalesK4 {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows) : LaneScalesK4(rows) {}
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    VI fifth[8];
    rows.words(16, fifth);
    rows.words(32, fifth + 4);
    each_constant<4>([&](auto pair) LANES_INLINE {
      VI packed[8];
      rows.words(48 + 32 * pair, packed);
      rows.words(64 + 32 * pair, packed + 4);
      each_constant<2>([&](auto high) LANES_INLINE {
        constexpr int g = 2 * pair + high;
        VI codes[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i)
          codes[i] = with_bits<g - 4, 16>(bits_of_bytes<4 * high, 15>(packed[i]), fifth[i]);
        use(std::integral_constant<int, g>(), codes);
      });
    });
  }
};

template <>
struct LaneBlock<Q6K> : LaneScales {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows) {
    d = upper_halves(rows.word<3>(Q6K::bytes - 16));
    rows.words(192, words);
  }
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    each_constant<2>([&](auto half) LANES_INLINE {
      VI low[16], high[8];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) rows.words(64 * half + 16 * i, low + 4 * i);
      rows.words(128 + 32 * half, high);
      rows.words(144 + 32 * half, high + 4);
      each_constant<4>([&](auto quarter) LANES_INLINE {
        constexpr int q = decltype(quarter)::value;
        VI codes[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i)
          codes[i] =
              with_bits<2 * q - 4, 0x30>(bits_of_bytes<q / 2 * 4, 15>(low[q % 2 * 8 + i]), high[i]);
        use(std::integral_constant<int, 4 * half + q>(), codes);
      });
    });
  }
};

template <>
struct LaneBlock<Iq4Xs> {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows) {
    rows.two_words(0, first, nibbles);
    d = lower_halves(first);
  }
  template <int t>
  HWY_INLINE V32 factor() const {
    // bits 2 t of the upper 16, to bit 4
    const VI six = hn::OrAnd(hn::And(moved<4 * t>(nibbles), int_all(15)), moved<12 + 2 * t>(first),
                             int_all(0x30));
    return hn::Mul(d, to_float(hn::Sub(six, int_all(32))));
  }
  template <int>
  HWY_INLINE V32 minimum() const {
    return zero();
  }
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    each_constant<8>([&](auto g) LANES_INLINE {
      lane_nibbles(
          rows, 8 + 16 * g, [](VI codes) HWY_ATTR { return from_table(kLevelCodes, codes); },
          [&](const VI(&codes)[8]) LANES_INLINE { use(g, codes); });
    });
  }
  V32 d;
  VI first, nibbles;
};

// --- ternary -------------------------------------------------------------------------------------

template <>
struct LaneBlock<Tq2_0> : LaneFactor {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows)
      : LaneFactor{upper_halves(rows.word<3>(Tq2_0::bytes - 16)), zero()} {}
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    each_constant<2>([&](auto half) LANES_INLINE {
      VI packed[8];
      rows.words(32 * half, packed);
      rows.words(16 + 32 * half, packed + 4);
      each_constant<4>([&](auto quarter) LANES_INLINE {
        VI codes[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) codes[i] = bits_of_bytes<2 * quarter, 3>(packed[i]);
        use(std::integral_constant<int, 4 * half + quarter>(), codes);
      });
    });
  }
};

template <>
struct LaneBlock<Tq1_0> : LaneFactor {
  explicit HWY_INLINE LaneBlock(const LaneRows& rows)
      : LaneFactor{upper_halves(rows.word<3>(Tq1_0::bytes - 16)), zero()} {}
  template <class Use>
  HWY_INLINE void each_group(const LaneRows& rows, const Use& use) const {
    const hn::Repartition<uint8_t, I32> d8;
    // the next digit of each byte, which is then no longer the uppermost
    const auto take = [&](VI& rest) LANES_INLINE {
      const auto v = hn::BitCast(d8, rest);
      rest = hn::BitCast(I32(), hn::Add(hn::Add(v, v), v));
      return hn::BitCast(I32(), ternary_digit(d8, v));
    };
    VI rest[8];
    rows.words(0, rest);
    rows.words(16, rest + 4);
    each_constant<5>([&](auto g) LANES_INLINE {
      VI codes[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) codes[i] = take(rest[i]);
      use(g, codes);
    });
    rows.words(32, rest);
    VI last = rows.word<3>(36);
    each_constant<3>([&](auto pair) LANES_INLINE {
      VI codes[8];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) codes[i] = take(rest[i]);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) codes[4 + i] = take(pair < 2 ? rest[i] : last);
      use(std::integral_constant<int, 5 + pair>(), codes);
    });
  }
};

#undef LANES_INLINE
#endif  // HWY_AVX3_DL

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
