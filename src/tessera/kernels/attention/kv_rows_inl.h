// Stored rows of keys and values (kv_rows.h) as floats, for attention: a tile at a time.
#if defined(TESSERA_KERNELS_KV_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_KV_ROWS_INL_H_
#undef TESSERA_KERNELS_KV_ROWS_INL_H_
#else
#define TESSERA_KERNELS_KV_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "tessera/kernels/weights/blocks_inl.h"
#include "tessera/kernels/attention/kv_rows.h"
#include "tessera/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// kLanes codes of e4m3, none of them NaN. Without a float that is not normal on the way, so that
// nothing depends on the processor's treatment of those.
HWY_INLINE V32 e4m3s(const uint8_t* p) {
  const auto bits = unsigned_bytes(p);
  const auto magnitude = low_bits(bits, 0x7f);
  const auto sign = hn::ShiftLeft<24>(low_bits(bits, 0x80));
  const auto normal = hn::Add(hn::ShiftLeft<20>(magnitude), int_all(120 << 23));
  const V32 small = hn::Mul(to_float(magnitude), all(0x1p-9f));
  const auto is_normal = hn::RebindMask(F32(), hn::Gt(magnitude, int_all(7)));
  const V32 value = hn::IfThenElse(is_normal, hn::BitCast(F32(), normal), small);
  return hn::Or(value, hn::BitCast(F32(), sign));
}
HWY_INLINE V32 integers(const uint8_t* p) {
  return to_float(signed_bytes(p));
}

// out[0 .. width) = the codes at p, vector by vector; bytes after them are not read
template <class Code, class Read>
HWY_INLINE void expand_row(const uint8_t* p, int64_t width, float* out, const Read& read) {
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes)
    store(read(reinterpret_cast<const Code*>(p) + c), out + c);
  if (c == width) return;
  Code rest[kLanes] = {};
  std::memcpy(rest, reinterpret_cast<const Code*>(p) + c,
              static_cast<size_t>(width - c) * sizeof(Code));
  store_part(read(rest), out + c, width - c);
}

// the same of blocks of i16
HWY_INLINE void expand_blocks(const uint8_t* p, int64_t width, float* out) {
  for (int64_t c = 0; c < width; c += Q4_1::elements, p += Q4_1::bytes) {
    HWY_ALIGN float block[Q4_1::elements];
    float* to = c + Q4_1::elements <= width ? out + c : block;
    Q4_1::unpack(p, [&](int e, V32 v) HWY_ATTR { store(v, to + e); });
    if (to == block) std::memcpy(out + c, block, static_cast<size_t>(width - c) * sizeof(float));
  }
}

/// n rows `stride` bytes apart -> out [n, width] and, of types that have them (has_row_scale),
/// their scales: the numbers are scale times out.
HWY_INLINE void expand_rows(DType type,
                            const uint8_t* rows,
                            int64_t stride,
                            int64_t n,
                            int64_t width,
                            float* out,
                            float* scales) {
  for (int64_t j = 0; j < n; ++j, rows += stride, out += width) {
    if (has_row_scale(type)) std::memcpy(scales + j, rows, kScaleBytes);
    switch (type) {
      case DType::f16:
        expand_row<uint16_t>(rows, width, out,
                             [](const uint16_t* p) HWY_ATTR { return halves(p); });
        break;
      case DType::bf16:
        expand_row<uint16_t>(rows, width, out, [](const uint16_t* p) HWY_ATTR { return bf16s(p); });
        break;
      case DType::i16:
        expand_blocks(rows, width, out);
        break;
      case DType::i8:
        expand_row<uint8_t>(rows + kScaleBytes, width, out,
                            [](const uint8_t* p) HWY_ATTR { return integers(p); });
        break;
      default:
        expand_row<uint8_t>(rows + kScaleBytes, width, out,
                            [](const uint8_t* p) HWY_ATTR { return e4m3s(p); });
    }
  }
}

/// x[j] *= scales[j]
HWY_INLINE void scale_all(const float* scales, int64_t n, float* x) {
  for (int64_t j = 0; j < n; j += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, n - j);
    store_upto(hn::Mul(load_upto(x + j, count), load_upto(scales + j, count)), x + j, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
