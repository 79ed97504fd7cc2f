// The code books (codebooks.h), made at compile time: for this machine (codebooks.cpp) and for
// kernels of CUDA (cuda/kernels/code_books.cuh).
#pragma once

#include <cstddef>

#include "tessera/kernels/weights/codebooks.h"

namespace tessera::kernels {

namespace books {

#include "tessera/kernels/weights/codebooks_data.inc"

constexpr uint8_t kIq2Levels[] = {8, 25, 43};
constexpr uint8_t kIq1Levels[] = {0xf8, 0, 8};  // -8, 0, 8
constexpr uint8_t kIq3XxsLevels[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr uint8_t kIq3SLevels[] = {1, 3, 5, 7, 9, 11, 13, 15};

/// Entries of as many bytes as a Word has: levels, by `bits` of an index each.
template <class Word, size_t n>
constexpr void spread(const uint16_t (&words)[n], const uint8_t* levels, Word (&out)[n]) {
  constexpr int numbers = sizeof(Word), bits = numbers == 8 ? 2 : 3;
  for (size_t i = 0; i < n; ++i) {
    out[i] = 0;
    for (int e = 0; e < numbers; ++e)
      out[i] |= static_cast<Word>(levels[words[i] >> (bits * e) & ((1 << bits) - 1)]) << (8 * e);
  }
}

}  // namespace books

constexpr CodeBooks made_code_books() {
  CodeBooks made{};
  books::spread(books::kIq2Xxs, books::kIq2Levels, made.iq2_xxs);
  books::spread(books::kIq2Xs, books::kIq2Levels, made.iq2_xs);
  books::spread(books::kIq2S, books::kIq2Levels, made.iq2_s);
  books::spread(books::kIq1S, books::kIq1Levels, made.iq1);
  books::spread(books::kIq3Xxs, books::kIq3XxsLevels, made.iq3_xxs);
  books::spread(books::kIq3S, books::kIq3SLevels, made.iq3_s);
  for (unsigned i = 0; i < 128; ++i) {
    unsigned odd = 0;
    for (unsigned bit = 0; bit < 7; ++bit) odd ^= i >> bit & 1;
    made.even_signs[i] = static_cast<uint8_t>(i | odd << 7);
  }
  for (unsigned i = 0; i < 256; ++i)
    for (unsigned e = 0; e < 8; ++e)
      if ((i >> e & 1) != 0) made.masks[i] |= uint64_t{255} << (8 * e);
  return made;
}

}  // namespace tessera::kernels
