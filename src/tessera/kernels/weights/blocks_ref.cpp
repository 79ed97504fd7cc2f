// The block formats, spelled out element by element.
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/kernels/weights/blocks.h"

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
      // doubled, so that they are whole: the power is half of what the byte says
      constexpr int kTwice[] = {0, 1, 2, 3, 4, 6, 8, 12};
      const int q = nibble(b + 1, e);
      return half_of_e8m0(b[0]) * static_cast<float>(q < 8 ? kTwice[q] : -kTwice[q - 8]);
    }
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
