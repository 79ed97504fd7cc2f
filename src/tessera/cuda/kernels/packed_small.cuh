// Block formats of 32 numbers (packed_block.cuh): codes of 4, 5 and 8 bits, those of quantized
// folders included.
#pragma once

#include "tessera/cuda/kernels/packed_block.cuh"
#include "tessera/kernels/weights/block_codes.h"
#include "tessera/kernels/weights/blocks.h"

namespace tessera::cuda {

struct Q4_0 : SmallBlocks<18> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch, lane);
    const float d = half_at(b);
    int q[8];
    nibbles<2>(b + 2, lane, q);
    for (int n = 0; n < 8; ++n) w[n] = d * static_cast<float>(q[n] - 8);
  }
};

struct Q4_1 : SmallBlocks<20> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch, lane);
    const float d = half_at(b), m = half_at(b + 2);
    int q[8];
    nibbles<4>(b + 4, lane, q);
    for (int n = 0; n < 8; ++n) w[n] = d * static_cast<float>(q[n]) + m;
  }
};

struct Q5_0 : SmallBlocks<22> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch, lane);
    const float d = half_at(b);
    int q[8];
    five_bits<2>(b + 6, b + 2, lane, q);
    for (int n = 0; n < 8; ++n) w[n] = d * static_cast<float>(q[n] - 16);
  }
};

struct Q5_1 : SmallBlocks<24> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch, lane);
    const float d = half_at(b), m = half_at(b + 2);
    int q[8];
    five_bits<4>(b + 8, b + 4, lane, q);
    for (int n = 0; n < 8; ++n) w[n] = d * static_cast<float>(q[n]) + m;
  }
};

struct Q8_0 : SmallBlocks<34> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch, lane);
    const float d = half_at(b);
    const uint8_t* q = b + 2 + 4 * (lane % 4);
    const uint32_t first = word_at<2>(q), second = word_at<2>(q + 16);
    for (int n = 0; n < 4; ++n) {
      w[n] = d * static_cast<float>(signed_byte_of(first, n));
      w[4 + n] = d * static_cast<float>(signed_byte_of(second, n));
    }
  }
};

struct Iq4Nl : SmallBlocks<18> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch, lane);
    const float d = half_at(b);
    int q[8];
    nibbles<2>(b + 2, lane, q);
    for (int n = 0; n < 8; ++n) w[n] = d * static_cast<float>(level<kernels::kLevels>(q[n]));
  }
};

/// The scale is a power of two, halved because the levels are doubled (half_of_e8m0 of
/// base/half.h).
struct MxFp4 : SmallBlocks<17> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch, lane);
    const uint32_t exponent = b[0];
    const float d = float_of_bits(exponent < 2 ? 0u : (exponent - 1) << 23);
    int q[8];
    nibbles<1>(b + 1, lane, q);
    for (int n = 0; n < 8; ++n) w[n] = d * static_cast<float>(level<kernels::kTwiceE2m1>(q[n]));
  }
};

// ---- of quantized folders, with a float as scale

struct ScaledU4 : SmallBlocks<21> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch, lane);
    const float d = float_of_bits(word_at<1>(b));
    const int zero = b[4];
    int q[8];
    nibbles<1>(b + 5, lane, q);
    for (int n = 0; n < 8; ++n) w[n] = d * static_cast<float>(q[n] - zero);
  }
};

struct ScaledI8 : SmallBlocks<38> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch, lane);
    const float d = float_of_bits(word_at<2>(b));
    const int zero = load<int16_t>(b + 4);
    const uint8_t* q = b + 6 + 4 * (lane % 4);
    const uint32_t first = word_at<2>(q), second = word_at<2>(q + 16);
    for (int n = 0; n < 4; ++n) {
      w[n] = d * static_cast<float>(signed_byte_of(first, n) - zero);
      w[4 + n] = d * static_cast<float>(signed_byte_of(second, n) - zero);
    }
  }
};

/// e4m3_to_float of base/float8.h.
TESSERA_DEVICE float float_of_e4m3(uint32_t bits) {
  const uint32_t sign = (bits & 0x80u) << 24, magnitude = bits & 0x7fu;
  const float small = static_cast<float>(magnitude) * 0x1p-9f;
  const uint32_t size = magnitude == 0x7fu ? 0x7fc00000u
                        : magnitude >= 8   ? (magnitude << 20) + (120u << 23)
                                           : bits_of_float(small);
  return float_of_bits(sign | size);
}

struct ScaledE4m3 : SmallBlocks<36> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch, lane);
    const float d = float_of_bits(word_at<4>(b));
    const uint8_t* q = b + 4 + 4 * (lane % 4);
    const uint32_t first = word_at<4>(q), second = word_at<4>(q + 16);
    for (int n = 0; n < 4; ++n) {
      w[n] = d * float_of_e4m3(first >> (8 * n) & 255);
      w[4 + n] = d * float_of_e4m3(second >> (8 * n) & 255);
    }
  }
};

}  // namespace tessera::cuda
