#include "tessera/kernels/weights/block_codes.h"

#include <cstring>

#include "tessera/base/error.h"

namespace tessera::kernels {
namespace {

constexpr int kSmallBlock = 32, kLargeBlock = 256;

/// The lower four bits of 32 codes: those of the first half in the low nibbles.
void put_nibbles(const uint8_t* code, uint8_t* to) {
  constexpr int kHalf = kSmallBlock / 2;
  for (int i = 0; i < kHalf; ++i)
    to[i] = static_cast<uint8_t>((code[i] & 15) | (code[kHalf + i] & 15) << 4);
}

/// The fifth bits of 32 codes, then the lower four.
void put_five_bits(const uint8_t* code, uint8_t* to) {
  uint32_t fifth = 0;
  for (int i = 0; i < kSmallBlock; ++i) fifth |= static_cast<uint32_t>(code[i] >> 4) << i;
  std::memcpy(to, &fifth, sizeof fifth);
  put_nibbles(code, to + sizeof fifth);
}

void put_two_bits(const uint8_t* codes, uint8_t* to) {
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 32; ++i) {
      const uint8_t* c = codes + 128 * half + i;
      to[32 * half + i] =
          static_cast<uint8_t>((c[0] & 3) | (c[32] & 3) << 2 | (c[64] & 3) << 4 | (c[96] & 3) << 6);
    }
}

/// Bit `bit` of the codes of eight groups of 32, a group in each bit of 32 bytes.
void put_upper_bits(const uint8_t* codes, int bit, uint8_t* to) {
  for (int i = 0; i < 32; ++i) {
    to[i] = 0;
    for (int g = 0; g < kLargeBlock / 32; ++g)
      to[i] = static_cast<uint8_t>(to[i] | (codes[32 * g + i] >> bit) << g);
  }
}

/// Nibbles of pairs of groups of 32.
void put_paired_nibbles(const uint8_t* codes, uint8_t* to) {
  for (int pair = 0; pair < 4; ++pair)
    for (int i = 0; i < 32; ++i) {
      const uint8_t* c = codes + 64 * pair + i;
      to[32 * pair + i] = static_cast<uint8_t>((c[0] & 15) | (c[32] & 15) << 4);
    }
}

void put_six_bits(const uint8_t* codes, uint8_t* to) {
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 32; ++i) {
      const uint8_t* c = codes + 128 * half + i;
      to[64 * half + i] = static_cast<uint8_t>((c[0] & 15) | (c[64] & 15) << 4);
      to[64 * half + 32 + i] = static_cast<uint8_t>((c[32] & 15) | (c[96] & 15) << 4);
      to[128 + 32 * half + i] = static_cast<uint8_t>((c[0] >> 4) | (c[32] >> 4) << 2 |
                                                     (c[64] >> 4) << 4 | (c[96] >> 4) << 6);
    }
}

/// `bytes` bytes of digits of base 3, the first uppermost, read as a fraction of 256.
uint8_t* put_thirds(const uint8_t* codes, int bytes, int digits, uint8_t* to) {
  for (int i = 0; i < bytes; ++i) {
    int number = 0;
    for (int digit = 0; digit < 5; ++digit)
      number = 3 * number + (digit < digits ? codes[digit * bytes + i] : 0);
    *to++ = static_cast<uint8_t>((number * 256 + 242) / 243);
  }
  return to;
}

}  // namespace

int code_count(DType type) {
  switch (type) {
    case DType::q8_0:
      return 255;
    case DType::q6_k:
      return 64;
    case DType::q5_0:
    case DType::q5_1:
    case DType::q5_k:
      return 32;
    case DType::q4_0:
    case DType::q4_1:
    case DType::q4_k:
    case DType::iq4_nl:
    case DType::iq4_xs:
    case DType::mxfp4:
      return 16;
    case DType::q3_k:
      return 8;
    case DType::q2_k:
      return 4;
    case DType::tq1_0:
    case DType::tq2_0:
      return 3;
    default:
      return 0;
  }
}

bool has_even_codes(DType type) {
  return type != DType::mxfp4 && type != DType::iq4_nl && type != DType::iq4_xs;
}

void put_codes(DType type, const uint8_t* codes, uint8_t* block) {
  switch (type) {
    case DType::q8_0:
      for (int i = 0; i < kSmallBlock; ++i) block[2 + i] = static_cast<uint8_t>(codes[i] - 127);
      return;
    case DType::mxfp4:
      return put_nibbles(codes, block + 1);
    case DType::q4_0:
    case DType::iq4_nl:
      return put_nibbles(codes, block + 2);
    case DType::q4_1:
      return put_nibbles(codes, block + 4);
    case DType::q5_0:
      return put_five_bits(codes, block + 2);
    case DType::q5_1:
      return put_five_bits(codes, block + 4);
    case DType::iq4_xs:
      for (int g = 0; g < kLargeBlock / kSmallBlock; ++g)
        put_nibbles(codes + kSmallBlock * g, block + 8 + 16 * g);
      return;
    case DType::q2_k:
      return put_two_bits(codes, block + 16);
    case DType::q3_k:
      put_upper_bits(codes, 2, block);
      return put_two_bits(codes, block + 32);
    case DType::q4_k:
      return put_paired_nibbles(codes, block + 16);
    case DType::q5_k:
      put_upper_bits(codes, 4, block + 16);
      return put_paired_nibbles(codes, block + 48);
    case DType::q6_k:
      return put_six_bits(codes, block);
    case DType::tq2_0:
      return put_two_bits(codes, block);
    case DType::tq1_0:
      put_thirds(codes + 240, 4, 4,
                 put_thirds(codes + 160, 16, 5, put_thirds(codes, 32, 5, block)));
      return;
    default:
      fail(ErrorKind::internal, "quantize", "type {} has no codes to put", name_of(type));
  }
}

}  // namespace tessera::kernels
