#include "tessera/kernels/attention/kv_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/attention/kv_rows.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/float8.h"
#include "tessera/base/half.h"
#include "tessera/kernels/simd_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// the same bits by the processor's instruction, where it has one
void write_halves(const float* x, int64_t n, uint16_t* out) {
  int64_t i = 0;
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, F32> halves;
  const hn::Rebind<uint16_t, F32> bits;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::BitCast(bits, hn::DemoteTo(halves, load(x + i))), bits, out + i);
#endif
  for (; i < n; ++i) out[i] = float_to_f16(x[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(write_halves);

namespace {

constexpr float kLargestInteger = 127;

/// Greatest magnitude, or NaN when any number is not finite.
float largest(const float* x, int64_t n) {
  float most = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return std::numeric_limits<float>::quiet_NaN();
    most = std::max(most, std::abs(x[i]));
  }
  return most;
}

void write_packed(DType type, const float* x, int64_t width, uint8_t* out) {
  const float most = largest(x, width);
  const float limit = type == DType::i8 ? kLargestInteger : kLargestE4m3;
  const float scale = most / limit;
  std::memcpy(out, &scale, sizeof scale);
  uint8_t* codes = out + kScaleBytes;
  // nothing to divide by: numbers so small that the scale is 0 read back as 0
  if (!(scale > 0)) {
    std::memset(codes, 0, static_cast<size_t>(width));
    return;
  }
  for (int64_t i = 0; i < width; ++i) {
    // a scale that was rounded down would lead past the last code
    const float c = std::clamp(x[i] / scale, -limit, limit);
    codes[i] = type == DType::i8 ? static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(c)))
                                 : float_to_e4m3(c);
  }
}

constexpr int64_t kBlock = 32, kBlockBytes = 20;
constexpr float kLargestCode = 15, kLargestHalf = 65504;

void write_blocks(const float* x, int64_t width, uint8_t* out) {
  for (int64_t first = 0; first < width; first += kBlock, out += kBlockBytes) {
    const int64_t n = std::min(kBlock, width - first);
    const auto [least, most] = std::minmax_element(x + first, x + first + n);
    const bool holds =
        !(largest(x + first, n) > kLargestHalf) && std::isfinite(largest(x + first, n));
    // what is stored is what is rounded to
    const uint16_t step = float_to_f16(holds ? (*most - *least) / kLargestCode
                                             : std::numeric_limits<float>::quiet_NaN()),
                   low = float_to_f16(holds ? *least : 0);
    std::memcpy(out, &step, sizeof step);
    std::memcpy(out + 2, &low, sizeof low);
    const float d = f16_to_float(step), m = f16_to_float(low);
    uint8_t codes[kBlock] = {};
    for (int64_t i = 0; i < n && d > 0; ++i)
      codes[i] = static_cast<uint8_t>(
          std::nearbyint(std::clamp((x[first + i] - m) / d, 0.0f, kLargestCode)));
    for (int64_t i = 0; i < kBlock / 2; ++i)
      out[4 + i] = static_cast<uint8_t>(codes[i] | codes[kBlock / 2 + i] << 4);
  }
}

}  // namespace

int64_t kv_row_bytes(DType type, int64_t width) {
  switch (type) {
    case DType::f32:
      return 4 * width;
    case DType::f16:
    case DType::bf16:
      return 2 * width;
    case DType::i8:
    case DType::u8:
      return kScaleBytes + width;
    case DType::i16:
      return (width + kBlock - 1) / kBlock * kBlockBytes;
    default:
      fail(ErrorKind::internal, "kv_rows", "rows of {}; expected f32, f16, bf16, i8, u8 or i16",
           name_of(type));
  }
}

void write_kv_rows(DType type, const float* x, int64_t rows, int64_t width, void* out) {
  const int64_t bytes = kv_row_bytes(type, width);
  cap_targets();
  if (type == DType::f32) {
    std::memcpy(out, x, static_cast<size_t>(rows * bytes));
    return;
  }
  for (int64_t r = 0; r < rows; ++r, x += width) {
    uint8_t* row = static_cast<uint8_t*>(out) + r * bytes;
    if (type == DType::i16) {
      write_blocks(x, width, row);
      continue;
    }
    if (is_packed(type)) {
      write_packed(type, x, width, row);
      continue;
    }
    auto* halves = reinterpret_cast<uint16_t*>(row);
    if (type == DType::f16) {
      HWY_DYNAMIC_DISPATCH(write_halves)(x, width, halves);
      continue;
    }
    for (int64_t i = 0; i < width; ++i) halves[i] = float_to_bf16(x[i]);
  }
}

void read_kv_row(DType type, const void* row, int64_t width, float* out) {
  const auto* bytes = static_cast<const uint8_t*>(row);
  if (type == DType::f32) {
    std::memcpy(out, bytes, static_cast<size_t>(width) * sizeof(float));
    return;
  }
  if (type == DType::i16) {
    for (int64_t i = 0; i < width; ++i) {
      const uint8_t* block = bytes + i / kBlock * kBlockBytes;
      uint16_t step, low;
      std::memcpy(&step, block, sizeof step);
      std::memcpy(&low, block + 2, sizeof low);
      const int64_t e = i % kBlock;
      const int code = e < kBlock / 2 ? block[4 + e] & 15 : block[4 + e - kBlock / 2] >> 4;
      // one rounding, as where rows are expanded
      out[i] = std::fma(static_cast<float>(code), f16_to_float(step), f16_to_float(low));
    }
    return;
  }
  if (is_packed(type)) {
    float scale = 0;
    std::memcpy(&scale, bytes, sizeof scale);
    const uint8_t* codes = bytes + kScaleBytes;
    for (int64_t i = 0; i < width; ++i)
      out[i] = scale * (type == DType::i8 ? static_cast<float>(static_cast<int8_t>(codes[i]))
                                          : e4m3_to_float(codes[i]));
    return;
  }
  kv_row_bytes(type, width);  // refuses others
  for (int64_t i = 0; i < width; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, bytes + 2 * i, 2);
    out[i] = type == DType::f16 ? f16_to_float(half) : bf16_to_float(half);
  }
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
