#include "tessera/kernels/weights/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/base/threads.h"

namespace tessera::kernels {
namespace {

constexpr int kElements = 32;

struct Format {
  DType type;
  int bits;
  bool has_minimum;  // values d * q + m, else d * (q - 2^(bits - 1))
};
constexpr Format kFormats[] = {{DType::q8_0, 8, false},
                               {DType::q4_0, 4, false},
                               {DType::q4_1, 4, true},
                               {DType::q5_0, 5, false},
                               {DType::q5_1, 5, true}};

const Format* format_of(DType type) {
  const auto* found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                   [&](const Format& format) { return format.type == type; });
  return found == std::end(kFormats) ? nullptr : found;
}

uint8_t* put_half(float value, uint8_t* to) {
  const uint16_t bits = float_to_f16(value);
  std::memcpy(to, &bits, sizeof bits);
  return to + sizeof bits;
}

float inverse(float d) {
  return d == 0 ? 0 : 1 / d;
}

/// The number of the largest magnitude, the first of several.
float furthest(const float* x) {
  return *std::max_element(x, x + kElements,
                           [](float a, float b) { return std::abs(a) < std::abs(b); });
}

/// d, then a signed byte each.
void write_bytes(const float* x, uint8_t* to) {
  const float d = std::abs(furthest(x)) / 127, id = inverse(d);
  to = put_half(d, to);
  for (int i = 0; i < kElements; ++i)
    to[i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * id)));
}

/// d, m where there is a minimum, the fifth bits where there are such, then the lower four: those
/// of the first half of the elements in the low nibbles.
void write_nibbles(const Format& format, const float* x, uint8_t* to) {
  const int most = (1 << format.bits) - 1, half = 1 << (format.bits - 1);
  float origin = 0, d = 0, shift = 0;
  if (format.has_minimum) {
    const auto [low, high] = std::minmax_element(x, x + kElements);
    origin = *low;
    d = (*high - *low) / static_cast<float>(most);
    shift = 0.5F;
  } else {
    // the furthest number is the lowest code, of which there is one more than above zero
    d = furthest(x) / static_cast<float>(-half);
    shift = static_cast<float>(half) + 0.5F;
  }
  const float id = inverse(d);
  to = put_half(d, to);
  if (format.has_minimum) to = put_half(origin, to);
  int code[kElements];
  for (int i = 0; i < kElements; ++i)
    code[i] = std::clamp(static_cast<int>((x[i] - origin) * id + shift), 0, most);
  if (format.bits == 5) {
    uint32_t fifth = 0;
    for (int i = 0; i < kElements; ++i) fifth |= static_cast<uint32_t>(code[i] >> 4) << i;
    std::memcpy(to, &fifth, sizeof fifth);
    to += sizeof fifth;
  }
  constexpr int kHalf = kElements / 2;
  for (int i = 0; i < kHalf; ++i)
    to[i] = static_cast<uint8_t>((code[i] & 15) | (code[kHalf + i] & 15) << 4);
}

}  // namespace

bool can_quantize(DType type) {
  return format_of(type) != nullptr;
}

void quantize(DType type, const float* src, int64_t n, void* dst) {
  const Format* format = format_of(type);
  require(format != nullptr, "quantize", "nothing writes type {}", name_of(type));
  require(n >= 0 && n % kElements == 0, "quantize",
          "{} elements of type {}: expected whole blocks of {}", n, name_of(type), kElements);
  const int64_t size = layout_of(type).block_bytes;
  auto* bytes = static_cast<uint8_t*>(dst);
  parallel_for(n / kElements, 128, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const float* x = src + block * kElements;
      if (!std::all_of(x, x + kElements, [](float v) { return std::isfinite(v); }))
        fail(ErrorKind::usage, "quantize",
             "a number is not finite; expected finite numbers, as {} holds no others",
             name_of(type));
      if (format->bits == 8)
        write_bytes(x, bytes + block * size);
      else
        write_nibbles(*format, x, bytes + block * size);
    }
  });
}

}  // namespace tessera::kernels
