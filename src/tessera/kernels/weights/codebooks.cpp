#include "tessera/kernels/weights/codebooks.h"

#include <cstddef>

namespace tessera::kernels {
namespace {

#include "tessera/kernels/weights/codebooks_data.inc"

constexpr uint8_t kIq2Levels[] = {8, 25, 43};
constexpr uint8_t kIq1Levels[] = {0xf8, 0, 8};  // -8, 0, 8
constexpr uint8_t kIq3XxsLevels[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr uint8_t kIq3SLevels[] = {1, 3, 5, 7, 9, 11, 13, 15};

/// Entries of `numbers` bytes: levels, by `bits` of an index each.
template <class Word, size_t n>
constexpr std::array<Word, n> spread(const uint16_t (&words)[n], const uint8_t* levels) {
  constexpr int numbers = sizeof(Word), bits = numbers == 8 ? 2 : 3;
  std::array<Word, n> out{};
  for (size_t i = 0; i < n; ++i)
    for (int e = 0; e < numbers; ++e)
      out[i] |= static_cast<Word>(levels[words[i] >> (bits * e) & ((1 << bits) - 1)]) << (8 * e);
  return out;
}

constexpr CodeBooks made() {
  CodeBooks books{spread<uint64_t>(kIq2Xxs, kIq2Levels),
                  spread<uint64_t>(kIq2Xs, kIq2Levels),
                  spread<uint64_t>(kIq2S, kIq2Levels),
                  spread<uint64_t>(kIq1S, kIq1Levels),
                  spread<uint32_t>(kIq3Xxs, kIq3XxsLevels),
                  spread<uint32_t>(kIq3S, kIq3SLevels),
                  {},
                  {}};
  for (unsigned i = 0; i < 128; ++i) {
    unsigned odd = 0;
    for (unsigned bit = 0; bit < 7; ++bit) odd ^= i >> bit & 1;
    books.even_signs[i] = static_cast<uint8_t>(i | odd << 7);
  }
  for (unsigned i = 0; i < 256; ++i)
    for (unsigned e = 0; e < 8; ++e)
      if ((i >> e & 1) != 0) books.masks[i] |= uint64_t{255} << (8 * e);
  return books;
}

}  // namespace

constinit const CodeBooks kCodeBooks = made();

}  // namespace tessera::kernels
