// The block formats, spelled out element by element.
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/float8.h"
#include "tessera/base/half.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/codebooks.h"

namespace tessera::kernels {
namespace {

float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return f16_to_float(bits);
}

float bf16_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bf16_to_float(bits);
}

float f32_at(const uint8_t* p) {
  float value;
  std::memcpy(&value, p, 4);
  return value;
}

// 32 elements: the first 16 in the low nibbles, the others in the high ones.
int nibble(const uint8_t* qs, int e) {
  return e < 16 ? qs[e] & 15 : qs[e - 16] >> 4;
}

int fifth_bit(const uint8_t* qh, int e) {
  return ((qh[e / 8] >> (e % 8)) & 1) << 4;
}

// q4_k and q5_k: eight 6-bit scales and eight 6-bit minima in 12 bytes.
int scale_k4(const uint8_t* s, int j) {
  return j < 4 ? s[j] & 63 : (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4);
}
int min_k4(const uint8_t* s, int j) {
  return j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
}

// q3_k: sixteen 6-bit scales in 12 bytes, offset by 32.
int scale_k3(const uint8_t* s, int j) {
  const int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
  const int high = (s[8 + j % 4] >> (2 * (j / 4))) & 3;
  return (low | (high << 4)) - 32;
}

// q2_k and q3_k: 2-bit values; each run of 32 bytes holds four groups of 32 elements.
int two_bits(const uint8_t* qs, int e) {
  return (qs[32 * (e / 128) + e % 32] >> (2 * (e % 128 / 32))) & 3;
}

uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}

// code books: a byte of an entry, with the sign of bit `e`
int byte_of(uint64_t entry, int e) {
  return static_cast<int8_t>(entry >> (8 * e));
}
float signed_level(int level, uint8_t signs, int e) {
  return static_cast<float>((signs >> e & 1) != 0 ? -level : level);
}
// -1, 0 or 1 of IQ1's book
float third(int index, int e) {
  return static_cast<float>(byte_of(kCodeBooks.iq1[static_cast<size_t>(index)], e % 8) / 8);
}

float value_of(DType type, const uint8_t* b, int e) {
  switch (type) {
    case DType::f32:
      return f32_at(b);
    case DType::f16:
      return half_at(b);
    case DType::bf16:
      return bf16_at(b);
    case DType::q4_0:
      return half_at(b) * static_cast<float>(nibble(b + 2, e) - 8);
    case DType::q4_1:
      return half_at(b) * static_cast<float>(nibble(b + 4, e)) + half_at(b + 2);
    case DType::q5_0:
      return half_at(b) * static_cast<float>((nibble(b + 6, e) | fifth_bit(b + 2, e)) - 16);
    case DType::q5_1:
      return half_at(b) * static_cast<float>(nibble(b + 8, e) | fifth_bit(b + 4, e)) +
             half_at(b + 2);
    case DType::q8_0:
      return half_at(b) * static_cast<float>(static_cast<int8_t>(b[2 + e]));
    case DType::q2_k: {
      const int scale = b[e / 16];
      const float d = half_at(b + 80) * static_cast<float>(scale & 15);
      const float m = half_at(b + 82) * static_cast<float>(scale >> 4);
      return d * static_cast<float>(two_bits(b + 16, e)) - m;
    }
    case DType::q3_k: {
      const float d = half_at(b + 108) * static_cast<float>(scale_k3(b + 96, e / 16));
      const int high = (b[e % 32] >> (e / 32)) & 1;
      return d * static_cast<float>(two_bits(b + 32, e) - 4 * (1 - high));
    }
    case DType::q4_k:
    case DType::q5_k: {
      const float d = half_at(b) * static_cast<float>(scale_k4(b + 4, e / 32));
      const float m = half_at(b + 2) * static_cast<float>(min_k4(b + 4, e / 32));
      const uint8_t* qs = b + (type == DType::q4_k ? 16 : 48) + 32 * (e / 64);
      int q = e % 64 < 32 ? qs[e % 32] & 15 : qs[e % 32] >> 4;
      if (type == DType::q5_k) q |= ((b[16 + e % 32] >> (e / 32)) & 1) << 4;
      return d * static_cast<float>(q) - m;
    }
    case DType::q6_k: {
      const float d = half_at(b + 208) * static_cast<float>(static_cast<int8_t>(b[192 + e / 16]));
      const uint8_t low = b[64 * (e / 128) + e % 64];
      const int high = (b[128 + 32 * (e / 128) + e % 32] >> (2 * (e % 128 / 32))) & 3;
      return d * static_cast<float>(((e % 128 < 64 ? low & 15 : low >> 4) | (high << 4)) - 32);
    }
    case DType::iq4_nl:
      return half_at(b) * static_cast<float>(kLevels[nibble(b + 2, e)]);
    case DType::iq4_xs: {
      const int g = e / 32, low = b[4 + g / 2] >> (4 * (g % 2)) & 15;
      const int high = (b[2 + g / 4] >> (2 * (g % 4))) & 3;
      const float d = half_at(b) * static_cast<float>((low | high << 4) - 32);
      return d * static_cast<float>(kLevels[nibble(b + 8 + 16 * g, e % 32)]);
    }
    case DType::mxfp4: {
      // doubled, so that they are whole: the power is half of the byte's
      constexpr int kTwice[] = {0, 1, 2, 3, 4, 6, 8, 12};
      const int q = nibble(b + 1, e);
      return half_of_e8m0(b[0]) * static_cast<float>(q < 8 ? kTwice[q] : -kTwice[q - 8]);
    }
    case DType::iq2_xxs: {
      const uint8_t* group = b + 2 + 8 * (e / 32);
      const uint32_t word = word_at(group + 4);
      const int eight = e % 32 / 8;
      const float db = half_at(b) * (0.5f + static_cast<float>(word >> 28)) * 0.25f;
      return db * signed_level(byte_of(kCodeBooks.iq2_xxs[group[eight]], e % 8),
                               kCodeBooks.even_signs[word >> (7 * eight) & 127], e % 8);
    }
    case DType::iq2_xs: {
      const int word = b[2 + 2 * (e / 8)] | b[3 + 2 * (e / 8)] << 8;
      const int scale = b[66 + e / 32] >> (4 * (e / 16 % 2)) & 15;
      const float db = half_at(b) * (0.5f + static_cast<float>(scale)) * 0.25f;
      return db * signed_level(byte_of(kCodeBooks.iq2_xs[word & 511], e % 8),
                               kCodeBooks.even_signs[word >> 9], e % 8);
    }
    case DType::iq2_s: {
      const int scale = b[74 + e / 32] >> (4 * (e / 16 % 2)) & 15;
      const int high = b[66 + e / 32] >> (2 * (e / 8 % 4)) & 3;
      const float db = half_at(b) * (0.5f + static_cast<float>(scale)) * 0.25f;
      return db * signed_level(byte_of(kCodeBooks.iq2_s[b[2 + e / 8] | high << 8], e % 8),
                               b[34 + e / 8], e % 8);
    }
    case DType::iq3_xxs: {
      const uint32_t word = word_at(b + 66 + 4 * (e / 32));
      const float db = half_at(b) * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
      return db * signed_level(byte_of(kCodeBooks.iq3_xxs[b[2 + e / 4]], e % 4),
                               kCodeBooks.even_signs[word >> (7 * (e % 32 / 8)) & 127], e % 8);
    }
    case DType::iq3_s: {
      const int scale = b[106 + e / 64] >> (4 * (e / 32 % 2)) & 15;
      const int high = b[66 + e / 32] >> (e % 32 / 4) & 1;
      const float db = half_at(b) * static_cast<float>(1 + 2 * scale);
      return db * signed_level(byte_of(kCodeBooks.iq3_s[b[2 + e / 4] | high << 8], e % 4),
                               b[74 + e / 8], e % 8);
    }
    case DType::iq1_s: {
      const int high = b[34 + 2 * (e / 32)] | b[35 + 2 * (e / 32)] << 8;
      const float dl = half_at(b) * static_cast<float>(2 * (high >> 12 & 7) + 1);
      const int index = b[2 + e / 8] | (high >> (3 * (e % 32 / 8)) & 7) << 8;
      return dl * (third(index, e) + ((high & 0x8000) != 0 ? -0.125f : 0.125f));
    }
    case DType::iq1_m: {
      const auto scales = [&](int i) { return b[48 + 2 * i] | b[49 + 2 * i] << 8; };
      int bits = 0;
      for (int i = 0; i < 4; ++i) bits |= (scales(i) & 0xf000) >> (12 - 4 * i);
      const int scale = scales(e / 64) >> (3 * (e % 64 / 16)) & 7;
      const float dl =
          f16_to_float(static_cast<uint16_t>(bits)) * static_cast<float>(2 * scale + 1);
      const int high = b[32 + e / 16] >> (4 * (e / 8 % 2)) & 15;
      return dl * (third(b[e / 8] | (high & 7) << 8, e) + ((high & 8) != 0 ? -0.125f : 0.125f));
    }
    case DType::tq1_0: {
      constexpr int kPowers[] = {1, 3, 9, 27, 81};
      const int at = e < 160 ? e % 32 : e < 240 ? 32 + (e - 160) % 16 : 48 + (e - 240) % 4;
      const int digit = e < 160 ? e / 32 : e < 240 ? (e - 160) / 16 : (e - 240) / 4;
      return half_at(b + 52) * static_cast<float>((b[at] * kPowers[digit] % 256 * 3 >> 8) - 1);
    }
    case DType::tq2_0:
      return half_at(b + 64) * static_cast<float>(two_bits(b, e) - 1);
    case DType::scaled_u4:
      return f32_at(b) * static_cast<float>(nibble(b + 5, e) - b[4]);
    case DType::scaled_i8: {
      int16_t zero;
      std::memcpy(&zero, b + 4, 2);
      return f32_at(b) * static_cast<float>(static_cast<int8_t>(b[6 + e]) - zero);
    }
    case DType::scaled_e4m3:
      return f32_at(b) * e4m3_to_float(b[4 + e]);
    default:
      break;
  }
  fail(ErrorKind::internal, "dequantize", "type {} has no values to read", name_of(type));
}

}  // namespace

bool can_dequantize(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16 || is_block_type(type);
}

void dequantize_ref(DType type, const void* src, int64_t n, float* dst) {
  const DTypeLayout& layout = layout_of(type);
  const auto* block = static_cast<const uint8_t*>(src);
  for (int64_t i = 0; i < n; i += layout.block_elements, block += layout.block_bytes)
    for (int e = 0; e < layout.block_elements; ++e) dst[i + e] = value_of(type, block, e);
}

}  // namespace tessera::kernels
