// Block formats of 256 numbers with codes of 2 to 6 bits (packed_block.cuh): K types, IQ4_XS, and
// the ternary ones.
#pragma once

#include "tessera/cuda/kernels/packed_block.cuh"
#include "tessera/kernels/weights/blocks.h"

namespace tessera::cuda {

/// Two bits of each of 256 numbers in 64 bytes at qs, those of this thread: of its first numbers
/// in bits 0 and 1 of each byte, of its second ones in bits 2 and 3.
template <int Align>
TESSERA_DEVICE uint32_t two_bits(const uint8_t* qs, int lane) {
  return word_at<Align>(qs + 32 * (lane / 16) + 4 * (lane % 8)) >> (4 * (lane / 8 % 2));
}

struct Q2K : LargeBlocks<84, InSixtyFours> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    const uint32_t codes = two_bits<4>(b + 16, lane);
    const float d = half_at(b + 80), m = half_at(b + 82);
    for (int part = 0; part < 2; ++part) {
      const int scale = b[4 * (lane / 8) + lane % 8 / 4 + 2 * part];
      const float by = d * static_cast<float>(scale & 15),
                  least = m * static_cast<float>(scale >> 4);
      for (int n = 0; n < 4; ++n)
        w[4 * part + n] = by * static_cast<float>(byte_of(codes >> (2 * part), n) & 3) - least;
    }
  }
};

/// Scale 4 g + i of sixteen 6-bit scales in 12 bytes, less 32.
TESSERA_DEVICE int scale_k3(const uint8_t* s, int g, int i) {
  const int low = s[4 * (g % 2) + i] >> (4 * (g / 2)) & 15, high = s[8 + i] >> (2 * g) & 3;
  return (low | high << 4) - 32;
}

struct Q3K : LargeBlocks<110, InSixtyFours> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    const int g = lane / 8, i = lane % 8;
    const uint32_t codes = two_bits<2>(b + 32, lane), highs = word_at<2>(b + 4 * i) >> (2 * g);
    const float d = half_at(b + 108);
    for (int part = 0; part < 2; ++part) {
      const float by = d * static_cast<float>(scale_k3(b + 96, g, i / 4 + 2 * part));
      for (int n = 0; n < 4; ++n) {
        const int low = byte_of(codes >> (2 * part), n) & 3, high = byte_of(highs >> part, n) & 1;
        w[4 * part + n] = by * static_cast<float>((low | high << 2) - 4);
      }
    }
  }
};

/// Eight 6-bit scales and eight 6-bit minima in 12 bytes.
TESSERA_DEVICE int scale_k4(const uint8_t* s, int j) {
  return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
}
TESSERA_DEVICE int min_k4(const uint8_t* s, int j) {
  return j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

struct Q4K : LargeBlocks<144, InSixtyFours> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    const int g = lane / 8, i = lane % 8;
    const uint32_t codes = word_at<4>(b + 16 + 32 * g + 4 * i);
    const float d = half_at(b), m = half_at(b + 2);
    for (int part = 0; part < 2; ++part) {
      const float by = d * static_cast<float>(scale_k4(b + 4, 2 * g + part)),
                  least = m * static_cast<float>(min_k4(b + 4, 2 * g + part));
      for (int n = 0; n < 4; ++n)
        w[4 * part + n] = by * static_cast<float>(byte_of(codes, n) >> (4 * part) & 15) - least;
    }
  }
};

struct Q5K : LargeBlocks<176, InSixtyFours> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    const int g = lane / 8, i = lane % 8;
    const uint32_t codes = word_at<4>(b + 48 + 32 * g + 4 * i),
                   highs = word_at<4>(b + 16 + 4 * i) >> (2 * g);
    const float d = half_at(b), m = half_at(b + 2);
    for (int part = 0; part < 2; ++part) {
      const float by = d * static_cast<float>(scale_k4(b + 4, 2 * g + part)),
                  least = m * static_cast<float>(min_k4(b + 4, 2 * g + part));
      for (int n = 0; n < 4; ++n) {
        const int low = byte_of(codes, n) >> (4 * part) & 15, high = byte_of(highs >> part, n) & 1;
        w[4 * part + n] = by * static_cast<float>(low | high << 4) - least;
      }
    }
  }
};

/// Sixteen threads have 128 numbers: four of the first 64 each, and four of the others.
struct InHalves {
  TESSERA_DEVICE static Places places(int lane) {
    const int first = 128 * (lane / 16) + 4 * (lane % 16);
    return {first, first + 64};
  }
};

struct Q6K : LargeBlocks<210, InHalves> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    const int half = lane / 16, i = lane % 16;
    const uint32_t lows = word_at<2>(b + 64 * half + 4 * i),
                   highs = word_at<2>(b + 128 + 32 * half + 4 * (i % 8)) >> (2 * (i / 8));
    const float d = half_at(b + 208);
    for (int part = 0; part < 2; ++part) {
      const int scale = static_cast<int8_t>(b[192 + 8 * half + i / 4 + 4 * part]);
      const float by = d * static_cast<float>(scale);
      for (int n = 0; n < 4; ++n) {
        const int low = byte_of(lows, n) >> (4 * part) & 15,
                  high = byte_of(highs >> (4 * part), n) & 3;
        w[4 * part + n] = by * static_cast<float>((low | high << 4) - 32);
      }
    }
  }
};

struct Iq4Xs : LargeBlocks<136, InThirtyTwos> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    const int g = lane / 4, low = b[4 + g / 2] >> (4 * (g % 2)) & 15,
              high = load<uint16_t>(b + 2) >> (2 * g) & 3;
    const float d = half_at(b) * static_cast<float>((low | high << 4) - 32);
    int q[8];
    nibbles<4>(b + 8 + 16 * g, lane, q);
    for (int n = 0; n < 8; ++n) w[n] = d * static_cast<float>(level<kernels::kLevels>(q[n]));
  }
};

struct Tq2_0 : LargeBlocks<66, InSixtyFours> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    const uint32_t codes = two_bits<2>(b, lane);
    const float d = half_at(b + 64);
    for (int part = 0; part < 2; ++part)
      for (int n = 0; n < 4; ++n)
        w[4 * part + n] = d * static_cast<float>((byte_of(codes >> (2 * part), n) & 3) - 1);
  }
};

/// Each thread has four numbers of the first 128 and four of the others.
struct InQuarters {
  TESSERA_DEVICE static Places places(int lane) { return {4 * lane, 128 + 4 * lane}; }
};

/// Five digits of base 3 in a byte: 160 numbers in 32 bytes, 80 in 16, and 16 (four digits) in 4.
struct Tq1_0 : LargeBlocks<54, InQuarters> {
  /// Numbers e .. e + 3.
  TESSERA_DEVICE static void four(const uint8_t* b, float d, int e, float* w) {
    const int at = e < 160 ? e % 32 : e < 240 ? 32 + e % 16 : 48;
    const int digit = e < 160 ? e / 32 : e < 240 ? (e - 160) / 16 : (e - 240) / 4;
    const auto power = static_cast<int>(uint64_t{0x511b090301} >> (8 * digit) & 255);  // of 3
    const uint32_t bytes = word_at<2>(b + at);
    for (int n = 0; n < 4; ++n)
      w[n] = d * static_cast<float>(((byte_of(bytes, n) * power & 255) * 3 >> 8) - 1);
  }
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    const float d = half_at(b + 52);
    const Places at = places(lane);
    four(b, d, at.first, w);
    four(b, d, at.second, w + 4);
  }
};

}  // namespace tessera::cuda
