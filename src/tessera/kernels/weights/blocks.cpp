#include "tessera/kernels/weights/blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/weights/blocks.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/weights/blocks_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

void dequantize_range(DType type, const uint8_t* src, int64_t n, float* dst) {
  dequantize_run(type, src, n, dst);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(dequantize_range);

void dequantize(DType type, const void* src, int64_t n, float* dst) {
  constexpr int64_t kUnit = 4096;  // elements a task takes at least; whole blocks of every type
  require(can_dequantize(type), "dequantize", "type {} has no values to read", name_of(type));
  const DTypeLayout& layout = layout_of(type);
  require(n >= 0 && n % layout.block_elements == 0, "dequantize",
          "{} elements of type {}: expected whole blocks of {}", n, layout.name,
          layout.block_elements);
  cap_targets();
  const auto* bytes = static_cast<const uint8_t*>(src);
  parallel_for((n + kUnit - 1) / kUnit, 16, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kUnit;
    const int64_t count = std::min(end * kUnit, n) - first;
    HWY_DYNAMIC_DISPATCH(dequantize_range)
    (type, bytes + first / layout.block_elements * layout.block_bytes, count, dst + first);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
