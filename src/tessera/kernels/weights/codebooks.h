// Code books of ggml's types IQ1, IQ2 and IQ3: the values of an index, eight numbers or four, as
// bytes in the order of the elements. Those of IQ2 and IQ3 are magnitudes, with signs next to
// the index; those of IQ1 are 8 times -1, 0 or 1, to which a block adds 1 or takes 1 away.
#pragma once

#include <array>
#include <cstdint>

namespace tessera::kernels {

struct CodeBooks {
  std::array<uint64_t, 256> iq2_xxs;
  std::array<uint64_t, 512> iq2_xs;
  std::array<uint64_t, 1024> iq2_s;
  std::array<uint64_t, 2048> iq1;
  std::array<uint32_t, 256> iq3_xxs;
  std::array<uint32_t, 512> iq3_s;
  /// Seven bits of signs to eight: the number of negative ones is even.
  std::array<uint8_t, 128> even_signs;
  /// Bit e of a byte to byte e: 255 or 0.
  std::array<uint64_t, 256> masks;
};
extern const CodeBooks kCodeBooks;

/// Bytes from 1 to 127, negative where `signs` has a bit.
inline uint64_t with_signs(uint64_t bytes, uint8_t signs) {
  const uint64_t mask = kCodeBooks.masks[signs];
  return (bytes ^ mask) + (mask & 0x0101010101010101u);
}

}  // namespace tessera::kernels
