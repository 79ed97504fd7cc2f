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
    default:
      fail(ErrorKind::internal, "kv_rows", "rows of {}; expected f32, f16, bf16, i8 or u8",
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
