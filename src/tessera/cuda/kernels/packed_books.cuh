// Block formats with code books (packed_block.cuh): IQ2 and IQ3, whose entries are magnitudes with
// signs next to the index, and IQ1. A thread has eight numbers in a row: one entry of eight, or two
// of four.
#pragma once

#include "tessera/cuda/kernels/code_books.cuh"
#include "tessera/cuda/kernels/packed_block.cuh"

namespace tessera::cuda {

/// d times the bytes of two words, negative where `signs` has a bit.
TESSERA_DEVICE void signed_levels(
    float d, uint32_t first, uint32_t second, uint32_t signs, float (&w)[8]) {
  for (int n = 0; n < 8; ++n) {
    const int size = byte_of(n < 4 ? first : second, n % 4);
    w[n] = float_of_bits(bits_of_float(d * static_cast<float>(size)) ^ (signs >> n & 1) << 31);
  }
}
TESSERA_DEVICE void signed_levels(float d, uint64_t entry, uint32_t signs, float (&w)[8]) {
  signed_levels(d, static_cast<uint32_t>(entry), static_cast<uint32_t>(entry >> 32), signs, w);
}

/// Seven bits of signs for each of four threads, and a factor of four bits, in a word.
TESSERA_DEVICE uint32_t signs_of(uint32_t word, int lane) {
  return kBooks.even_signs[word >> (7 * (lane % 4)) & 127];
}
TESSERA_DEVICE float factor_of(uint32_t word) {
  return 0.5f + static_cast<float>(word >> 28);
}
/// A factor of four bits for every two threads, in the bytes at `scales`.
TESSERA_DEVICE float factor_of(const uint8_t* scales, int lane) {
  return 0.5f + static_cast<float>(scales[lane / 4] >> (4 * (lane / 2 % 2)) & 15);
}

struct Iq2Xxs : LargeBlocks<66, InEights> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    const uint8_t* group = b + 2 + 8 * (lane / 4);
    const uint32_t word = word_at<2>(group + 4);
    const float d = half_at(b) * factor_of(word) * 0.25f;
    signed_levels(d, kBooks.iq2_xxs[group[lane % 4]], signs_of(word, lane), w);
  }
};

struct Iq2Xs : LargeBlocks<74, InEights> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    const int word = load<uint16_t>(b + 2 + 2 * lane);
    const float d = half_at(b) * factor_of(b + 66, lane) * 0.25f;
    signed_levels(d, kBooks.iq2_xs[word & 511], kBooks.even_signs[word >> 9], w);
  }
};

struct Iq2S : LargeBlocks<82, InEights> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    const int high = b[66 + lane / 4] >> (2 * (lane % 4)) & 3;
    const float d = half_at(b) * factor_of(b + 74, lane) * 0.25f;
    signed_levels(d, kBooks.iq2_s[b[2 + lane] | high << 8], b[34 + lane], w);
  }
};

struct Iq3Xxs : LargeBlocks<98, InEights> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    const int pair = load<uint16_t>(b + 2 + 2 * lane);
    const uint32_t word = word_at<2>(b + 66 + 4 * (lane / 4));
    const float d = half_at(b) * factor_of(word) * 0.5f;
    signed_levels(d, kBooks.iq3_xxs[pair & 255], kBooks.iq3_xxs[pair >> 8], signs_of(word, lane),
                  w);
  }
};

struct Iq3S : LargeBlocks<110, InEights> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    const int pair = load<uint16_t>(b + 2 + 2 * lane), high = b[66 + lane / 4] >> (2 * (lane % 4)),
              scale = b[106 + lane / 8] >> (4 * (lane / 4 % 2)) & 15;
    const float d = half_at(b) * static_cast<float>(1 + 2 * scale);
    signed_levels(d, kBooks.iq3_s[(pair & 255) | (high & 1) << 8],
                  kBooks.iq3_s[pair >> 8 | (high & 2) << 7], b[74 + lane], w);
  }
};

/// d times bytes of IQ1, 8 times -1, 0 or 1, after one is taken away or added.
TESSERA_DEVICE void moved_levels(float d, uint64_t entry, bool down, float (&w)[8]) {
  const int by = down ? -1 : 1;
  for (int n = 0; n < 8; ++n) {
    const auto word = static_cast<uint32_t>(n < 4 ? entry : entry >> 32);
    w[n] = d * static_cast<float>(signed_byte_of(word, n % 4) + by);
  }
}

struct Iq1S : LargeBlocks<50, InEights> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    const int high = load<uint16_t>(b + 34 + 2 * (lane / 4));
    const float d = half_at(b) * static_cast<float>(2 * (high >> 12 & 7) + 1) * 0.125f;
    const int index = b[2 + lane] | (high >> (3 * (lane % 4)) & 7) << 8;
    moved_levels(d, kBooks.iq1[index], (high & 0x8000) != 0, w);
  }
};

struct Iq1M : LargeBlocks<56, InEights> {
  TESSERA_DEVICE static void decode(const uint8_t* row, int64_t stretch, int lane, float (&w)[8]) {
    const uint8_t* b = block(row, stretch);
    // a half in the uppermost four bits of four numbers of 16
    const uint32_t low = word_at<4>(b + 48), high = word_at<4>(b + 52);
    const uint32_t bits =
        (low >> 12 & 15) | (low >> 28) << 4 | (high >> 12 & 15) << 8 | (high >> 28) << 12;
    const uint32_t three = (lane < 16 ? low : high) >> (16 * (lane / 8 % 2) + 3 * (lane / 2 % 4));
    const float d = float_of_half(static_cast<uint16_t>(bits)) *
                    static_cast<float>(2 * (three & 7) + 1) * 0.125f;
    const int more = b[32 + lane / 2] >> (4 * (lane % 2)) & 15;
    moved_levels(d, kBooks.iq1[b[lane] | (more & 7) << 8], (more & 8) != 0, w);
  }
};

}  // namespace tessera::cuda
