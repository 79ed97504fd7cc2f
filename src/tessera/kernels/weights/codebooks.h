// Code books of ggml's types IQ1, IQ2 and IQ3: the values of an index, eight numbers or four, as
// bytes in the order of the elements. Those of IQ2 and IQ3 are magnitudes, with signs next to
// the index; those of IQ1 are 8 times -1, 0 or 1, to which a block adds 1 or takes 1 away.
// codebooks_inl.h makes them; kernels of CUDA have a copy on their device.
#pragma once

#include <cstdint>

namespace tessera::kernels {

struct CodeBooks {
  uint64_t iq2_xxs[256];
  uint64_t iq2_xs[512];
  uint64_t iq2_s[1024];
  uint64_t iq1[2048];
  uint32_t iq3_xxs[256];
  uint32_t iq3_s[512];
  /// Seven bits of signs to eight: the number of negative ones is even.
  uint8_t even_signs[128];
  /// Bit e of a byte to byte e: 255 or 0.
  uint64_t masks[256];
};
extern const CodeBooks kCodeBooks;

/// Bytes from 1 to 127, negative where `signs` has a bit.
inline uint64_t with_signs(uint64_t bytes, uint8_t signs) {
  const uint64_t mask = kCodeBooks.masks[signs];
  return (bytes ^ mask) + (mask & 0x0101010101010101u);
}

}  // namespace tessera::kernels
