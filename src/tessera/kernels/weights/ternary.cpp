#include "tessera/kernels/weights/ternary.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/weights/block_codes.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kPiece = 4096;  // numbers that one thread sums
constexpr float kLeastMean = 1e-5f;
constexpr int64_t kGrain = 16;  // pieces of a task

int64_t pieces_of(int64_t n) {
  return (n + kPiece - 1) / kPiece;
}

/// Calls body(begin, end) for the pieces of n numbers, on all threads.
template <class Body>
void for_pieces(int64_t n, Body body) {
  parallel_for(pieces_of(n), kGrain, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) body(p * kPiece, std::min(n, (p + 1) * kPiece));
  });
}

/// In eight sums, so that they need not wait for each other.
double sum_of_magnitudes(const float* w, int64_t n) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int lane = 0; lane < 8; ++lane) sums[lane] += static_cast<double>(std::abs(w[i + lane]));
  for (int lane = 0; i < n; ++i, ++lane) sums[lane] += static_cast<double>(std::abs(w[i]));
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return sum;
}

}  // namespace

float absmean(const float* w, int64_t n) {
  std::vector<double> sums(static_cast<size_t>(pieces_of(n)));
  for_pieces(n, [&](int64_t begin, int64_t end) {
    sums[static_cast<size_t>(begin / kPiece)] = sum_of_magnitudes(w + begin, end - begin);
  });
  double sum = 0;
  for (const double piece : sums) sum += piece;
  const auto mean = static_cast<float>(sum / static_cast<double>(std::max<int64_t>(1, n)));
  return mean < kLeastMean ? kLeastMean : mean;  // NaN stays
}

void ternary_codes(const float* w, int64_t n, float mean, uint8_t* codes) {
  const float inverse = 1.0f / mean;
  for_pieces(n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float scaled = w[i] * inverse;  // halves are rounded to 0, which is even
      codes[i] = static_cast<uint8_t>(1 + (scaled > 0.5f ? 1 : 0) - (scaled < -0.5f ? 1 : 0));
    }
  });
}

void ternary_values(const float* w, int64_t n, float mean, float* to) {
  const float inverse = 1.0f / mean, d = 1.0f / inverse;
  for_pieces(n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float scaled = w[i] * inverse;
      to[i] = d * ((scaled > 0.5f ? 1.0f : 0.0f) - (scaled < -0.5f ? 1.0f : 0.0f));
    }
  });
}

bool read_ternary(const float* w, int64_t n, uint8_t* codes, float& d) {
  d = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = std::abs(w[i]);
    if (d == 0) d = magnitude;
    if (magnitude != 0 && magnitude != d) return false;
    codes[i] = static_cast<uint8_t>(1 + (w[i] > 0 ? 1 : 0) - (w[i] < 0 ? 1 : 0));
  }
  return std::isfinite(d);
}

DType ternary_type(int64_t columns, std::span<const float> factors) {
  const auto is_half = [](float d) { return f16_to_float(float_to_f16(d)) == d; };
  if (columns % layout_of(DType::tq2_0).block_elements == 0 &&
      std::all_of(factors.begin(), factors.end(), is_half))
    return DType::tq2_0;
  return columns % layout_of(DType::scaled_u4).block_elements == 0 ? DType::scaled_u4 : DType::f32;
}

void put_ternary(DType type, const uint8_t* codes, int64_t n, float d, void* to) {
  const DTypeLayout& layout = layout_of(type);
  const int64_t elements = layout.block_elements;
  require(n % elements == 0, "ternary", "{} numbers; expected whole blocks of {}", n, elements);
  if (type == DType::f32) {
    auto* values = static_cast<float*>(to);
    for (int64_t i = 0; i < n; ++i) values[i] = d * (static_cast<float>(codes[i]) - 1);
    return;
  }
  require(type == DType::tq2_0 || type == DType::scaled_u4, "ternary", "type {}", layout.name);
  const uint16_t half = float_to_f16(d);
  parallel_for(n / elements, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      auto* block = static_cast<uint8_t*>(to) + b * layout.block_bytes;
      const uint8_t* code = codes + b * elements;
      if (type == DType::tq2_0) {
        put_codes(type, code, block);
        std::memcpy(block + layout.block_bytes - 2, &half, 2);
        continue;
      }
      // d, the code of zero, and codes of four bits, those of the first half in the low ones
      std::memcpy(block, &d, 4);
      block[4] = 1;
      for (int i = 0; i < 16; ++i) block[5 + i] = static_cast<uint8_t>(code[i] | code[16 + i] << 4);
    }
  });
}

}  // namespace tessera::kernels
