// Block formats of weights, decoded eight numbers at a time by the 32 threads of a warp.
//
// A row is read in stretches of 256 numbers: 8 blocks of 32, or one of 256. Thread `lane` decodes
// numbers first .. first + 3 and second .. second + 3 of a stretch (places()), which share their
// bytes: neighbouring threads read neighbouring bytes and multiply with neighbouring inputs.
//
// Layouts and values are those of kernels/weights/blocks_ref.cpp, bit for bit: products d q are
// exact in float32, so that contracting d q + m changes nothing.
#pragma once

#ifndef __CUDACC__
#include <bit>
#include <cstring>

#include "tessera/base/half.h"
#endif

#include <cstdint>

#include "tessera/cuda/block.h"

namespace tessera::cuda {

inline constexpr int kStretch = 256;

struct Places {
  int first, second;  // of 4 numbers each, within a stretch
};

/// The number at p, whose address is a multiple of its size.
template <class T>
TESSERA_DEVICE T load(const void* p) {
#ifdef __CUDACC__
  return *static_cast<const T*>(p);
#else
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
#endif
}

/// Four bytes at p, whose address is a multiple of Align.
template <int Align>
TESSERA_DEVICE uint32_t word_at(const uint8_t* p) {
  static_assert(Align == 2 || Align == 4);
  if constexpr (Align == 4)
    return load<uint32_t>(p);
  else
    return load<uint16_t>(p) | static_cast<uint32_t>(load<uint16_t>(p + 2)) << 16;
}

TESSERA_DEVICE uint32_t bits_of_float(float value) {
#ifdef __CUDACC__
  return __float_as_uint(value);
#else
  return std::bit_cast<uint32_t>(value);
#endif
}

TESSERA_DEVICE float half_at(const uint8_t* p) {
  const auto bits = load<uint16_t>(p);
#ifdef __CUDACC__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  return f16_to_float(bits);
#endif
}

/// Byte n of a word.
TESSERA_DEVICE int byte_of(uint32_t word, int n) {
  return static_cast<int>(word >> (8 * n) & 255);
}
TESSERA_DEVICE int signed_byte_of(uint32_t word, int n) {
  return static_cast<int8_t>(byte_of(word, n));
}

// ---- blocks of 32: four threads a block

template <int Bytes>
struct SmallBlocks {
  static constexpr int kElements = 32, kBytes = Bytes;
  TESSERA_DEVICE static Places places(int lane) {
    const int first = 32 * (lane / 4) + 4 * (lane % 4);
    return {first, first + 16};
  }
  TESSERA_DEVICE static const uint8_t* block(const uint8_t* row, int64_t stretch, int lane) {
    return row + (8 * stretch + lane / 4) * Bytes;
  }
  /// The codes of 16 bytes of nibbles at qs: low ones first.
  template <int Align>
  TESSERA_DEVICE static void nibbles(const uint8_t* qs, int lane, int (&q)[8]) {
    const uint32_t word = word_at<Align>(qs + 4 * (lane % 4));
    for (int n = 0; n < 4; ++n) {
      q[n] = byte_of(word, n) & 15;
      q[4 + n] = byte_of(word, n) >> 4;
    }
  }
  /// The same with a fifth bit from the four bytes at qh.
  template <int Align>
  TESSERA_DEVICE static void five_bits(const uint8_t* qs,
                                       const uint8_t* qh,
                                       int lane,
                                       int (&q)[8]) {
    nibbles<Align>(qs, lane, q);
    const uint32_t high = word_at<2>(qh) >> (4 * (lane % 4));
    for (int n = 0; n < 4; ++n) {
      q[n] |= static_cast<int>(high >> n & 1) << 4;
      q[4 + n] |= static_cast<int>(high >> (16 + n) & 1) << 4;
    }
  }
};

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

// ---- blocks of 256: one a warp

/// Threads in groups of 8, of which each has 64 numbers.
template <int Bytes>
struct LargeBlocks {
  static constexpr int kElements = 256, kBytes = Bytes;
  TESSERA_DEVICE static Places places(int lane) {
    const int first = 64 * (lane / 8) + 4 * (lane % 8);
    return {first, first + 32};
  }
  TESSERA_DEVICE static const uint8_t* block(const uint8_t* row, int64_t stretch) {
    return row + stretch * Bytes;
  }
};

/// Eight 6-bit scales and eight 6-bit minima in 12 bytes.
TESSERA_DEVICE int scale_k4(const uint8_t* s, int j) {
  return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
}
TESSERA_DEVICE int min_k4(const uint8_t* s, int j) {
  return j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

struct Q4K : LargeBlocks<144> {
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

struct Q5K : LargeBlocks<176> {
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

struct Q6K : LargeBlocks<210> {
  /// Threads in halves, of which each has 128 numbers.
  TESSERA_DEVICE static Places places(int lane) {
    const int first = 128 * (lane / 16) + 4 * (lane % 16);
    return {first, first + 64};
  }
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

}  // namespace tessera::cuda
