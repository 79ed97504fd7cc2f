// The 8-bit float e4m3 (OCP "fn" form: no infinities, largest 448, NaN = 0x7f and 0xff), bit-exact
// with the hardware's: round to nearest even, subnormals kept.
#pragma once

#include <bit>
#include <cstdint>

namespace tessera {

inline constexpr float kLargestE4m3 = 448;

inline float e4m3_to_float(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t magnitude = bits & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  // exponent bias 7 against 127: 120 more
  if (magnitude >= 8) return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
  const float small = static_cast<float>(magnitude) * 0x1p-9f;
  return sign != 0 ? -small : small;
}

/// Values beyond the largest, and NaN, give NaN.
inline uint8_t float_to_e4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // 464 lies half way between 448 and what would be 480; the tie goes to the even 448
  if (magnitude > 0x43e80000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (magnitude < 0x3c800000u) {  // below 2^-6: let the float adder round at 2^-9
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
  }
  const uint32_t rebiased = magnitude - (120u << 23);
  return static_cast<uint8_t>(sign | ((rebiased + 0x7ffffu + ((rebiased >> 20) & 1u)) >> 20));
}

}  // namespace tessera
