// What block formats of weights are written with: they are decoded eight numbers at a time by the
// 32 threads of a warp.
//
// A row is read in stretches of 256 numbers: 8 blocks of 32, or one of 256. Thread `lane` decodes
// numbers first .. first + 3 and second .. second + 3 of a stretch (places()), which share their
// bytes: neighbouring threads read neighbouring bytes and multiply with neighbouring inputs.
//
// A format is a struct with kElements and kBytes of a block, places(), and decode(row, stretch,
// lane, w). Layouts and values are those of kernels/weights/blocks_ref.cpp, bit for bit: products
// d q are exact in float32, so that contracting d q + m changes nothing.
//
// A block lies at a multiple of 4 bytes where its size is one, else of 2 where its size is even,
// and is read by words or by halves of words. Blocks of an odd size (17 bytes of MXFP4, 21 of
// scaled_u4) are read byte by byte: a warp's bytes are neighbours, so that it takes more
// instructions and no more memory traffic. Wider reads that begin before a byte or end behind it
// would leave the tensor at its ends.
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
  static_assert(Align == 1 || Align == 2 || Align == 4);
  if constexpr (Align == 4)
    return load<uint32_t>(p);
  else if constexpr (Align == 2)
    return load<uint16_t>(p) | static_cast<uint32_t>(load<uint16_t>(p + 2)) << 16;
  else
    return p[0] | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16 |
           static_cast<uint32_t>(p[3]) << 24;
}

TESSERA_DEVICE uint32_t bits_of_float(float value) {
#ifdef __CUDACC__
  return __float_as_uint(value);
#else
  return std::bit_cast<uint32_t>(value);
#endif
}
TESSERA_DEVICE float float_of_bits(uint32_t bits) {
#ifdef __CUDACC__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

TESSERA_DEVICE float float_of_half(uint16_t bits) {
#ifdef __CUDACC__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  return f16_to_float(bits);
#endif
}
TESSERA_DEVICE float half_at(const uint8_t* p) {
  return float_of_half(load<uint16_t>(p));
}

/// Byte n of a word.
TESSERA_DEVICE int byte_of(uint32_t word, int n) {
  return static_cast<int>(word >> (8 * n) & 255);
}
TESSERA_DEVICE int signed_byte_of(uint32_t word, int n) {
  return static_cast<int8_t>(byte_of(word, n));
}

// ---- codes of four bits, of four threads for 32 numbers

/// The codes of 16 bytes of nibbles at qs: low ones first.
template <int Align>
TESSERA_DEVICE void nibbles(const uint8_t* qs, int lane, int (&q)[8]) {
  const uint32_t word = word_at<Align>(qs + 4 * (lane % 4));
  for (int n = 0; n < 4; ++n) {
    q[n] = byte_of(word, n) & 15;
    q[4 + n] = byte_of(word, n) >> 4;
  }
}
/// The same with a fifth bit from the four bytes at qh.
template <int Align>
TESSERA_DEVICE void five_bits(const uint8_t* qs, const uint8_t* qh, int lane, int (&q)[8]) {
  nibbles<Align>(qs, lane, q);
  const uint32_t high = word_at<2>(qh) >> (4 * (lane % 4));
  for (int n = 0; n < 4; ++n) {
    q[n] |= static_cast<int>(high >> n & 1) << 4;
    q[4 + n] |= static_cast<int>(high >> (16 + n) & 1) << 4;
  }
}

/// Eight of sixteen levels as a number, the first in its lowest byte.
constexpr uint64_t eight_of(const int8_t (&levels)[16], int first) {
  uint64_t out = 0;
  for (int n = 0; n < 8; ++n)
    out |= static_cast<uint64_t>(static_cast<uint8_t>(levels[first + n])) << (8 * n);
  return out;
}
template <const int8_t (&levels)[16], int first>
inline constexpr uint64_t kEight = eight_of(levels, first);

/// levels[code], from registers.
template <const int8_t (&levels)[16]>
TESSERA_DEVICE int level(int code) {
  return static_cast<int8_t>((code < 8 ? kEight<levels, 0> : kEight<levels, 8>) >>
                             (8 * (code & 7)));
}

// ---- how blocks are shared among the threads of a warp

/// Four threads have 32 numbers: two groups of four each.
struct InThirtyTwos {
  TESSERA_DEVICE static Places places(int lane) {
    const int first = 32 * (lane / 4) + 4 * (lane % 4);
    return {first, first + 16};
  }
};

/// Eight threads have 64 numbers: four of the first 32 each, and four of the others.
struct InSixtyFours {
  TESSERA_DEVICE static Places places(int lane) {
    const int first = 64 * (lane / 8) + 4 * (lane % 8);
    return {first, first + 32};
  }
};

/// Each thread has eight numbers in a row.
struct InEights {
  TESSERA_DEVICE static Places places(int lane) { return {8 * lane, 8 * lane + 4}; }
};

/// Blocks of 32, of which a stretch has eight.
template <int Bytes>
struct SmallBlocks : InThirtyTwos {
  static constexpr int kElements = 32, kBytes = Bytes;
  TESSERA_DEVICE static const uint8_t* block(const uint8_t* row, int64_t stretch, int lane) {
    return row + (8 * stretch + lane / 4) * Bytes;
  }
};

/// Blocks of 256, shared among the threads as Shared says.
template <int Bytes, class Shared>
struct LargeBlocks : Shared {
  static constexpr int kElements = 256, kBytes = Bytes;
  TESSERA_DEVICE static const uint8_t* block(const uint8_t* row, int64_t stretch) {
    return row + stretch * Bytes;
  }
};

}  // namespace tessera::cuda
