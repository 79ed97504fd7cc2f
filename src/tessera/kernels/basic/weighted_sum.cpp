#include "tessera/kernels/basic/weighted_sum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/basic/weighted_sum.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/threads.h"
#include "tessera/kernels/simd_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// `rows` outputs share the loads of v
template <int rows>
HWY_INLINE void sum_rows(const WeightedSum& s, int64_t i) {
  for (int64_t c = 0; c < s.C; c += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, s.C - c);
    V32 sum[rows];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r)
      sum[r] = s.onto ? load_upto(s.y + (i + r) * s.y_stride + c, count) : zero();
    const auto add = [&](auto&& read) HWY_ATTR {
      for (int64_t j = 0; j < s.N; ++j) {
        const V32 v = read(s.v + j * s.v_stride + c);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r)
          sum[r] = hn::MulAdd(all(s.a[(i + r) * s.a_stride + j]), v, sum[r]);
      }
    };
    if (count == kLanes)
      add([](const float* p) HWY_ATTR { return load(p); });
    else
      add([&](const float* p) HWY_ATTR { return load_part(p, count); });
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) store_upto(sum[r], s.y + (i + r) * s.y_stride + c, count);
  }
}

void sum_range(const WeightedSum& s, int64_t begin, int64_t end) {
  int64_t i = begin;
  for (; i + 4 <= end; i += 4) sum_rows<4>(s, i);
  for (; i < end; ++i) sum_rows<1>(s, i);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(sum_range);

void weighted_sum(const WeightedSum& s) {
  cap_targets();
  const int64_t grain = 1 + (int64_t{1} << 15) / (1 + s.N * s.C);
  parallel_for(s.M, grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(sum_range)(s, begin, end);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
