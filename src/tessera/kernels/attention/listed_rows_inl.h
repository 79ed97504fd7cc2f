// Queries against rows that lie anywhere: products with listed keys, sums of listed values.
#if defined(TESSERA_KERNELS_LISTED_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_LISTED_ROWS_INL_H_
#undef TESSERA_KERNELS_LISTED_ROWS_INL_H_
#else
#define TESSERA_KERNELS_LISTED_ROWS_INL_H_
#endif

#include <type_traits>

#include "tessera/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// out[j] = q . rows[j]; the order of a sum's additions does not depend on j
HWY_INLINE void products_of_rows(
    const float* q, int64_t width, const float* const* rows, int64_t n, float* out) {
  const auto some = [&](auto count, int64_t j) HWY_ATTR {
    constexpr int kCount = decltype(count)::value;
    V32 sum[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) sum[i] = zero();
    const auto step = [&](auto&& read, int64_t c) HWY_ATTR {
      const V32 x = read(q + c);
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) sum[i] = hn::MulAdd(x, read(rows[j + i] + c), sum[i]);
    };
    const int64_t whole = width / kLanes * kLanes;
    for (int64_t c = 0; c < whole; c += kLanes)
      step([](const float* p) HWY_ATTR { return load(p); }, c);
    if (whole != width)
      step([&](const float* p) HWY_ATTR { return load_part(p, width - whole); }, whole);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) out[j + i] = sum_of(sum[i]);
  };
  int64_t j = 0;
  for (; j + 8 <= n; j += 8) some(std::integral_constant<int, 8>(), j);
  for (; j < n; ++j) some(std::integral_constant<int, 1>(), j);
}

// out[c] += sum over n rows of weights[j] rows[j][c], rows ascending
HWY_INLINE void add_rows(
    const float* weights, const float* const* rows, int64_t n, int64_t width, float* out) {
  const auto some = [&](auto count, int64_t c) HWY_ATTR {
    constexpr int kCount = decltype(count)::value;
    V32 sum[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) sum[i] = load(out + c + i * kLanes);
    for (int64_t j = 0; j < n; ++j) {
      const V32 weight = all(weights[j]);
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i)
        sum[i] = hn::MulAdd(weight, load(rows[j] + c + i * kLanes), sum[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) store(sum[i], out + c + i * kLanes);
  };
  int64_t c = 0;
  for (; c + 8 * kLanes <= width; c += 8 * kLanes) some(std::integral_constant<int, 8>(), c);
  for (; c + 4 * kLanes <= width; c += 4 * kLanes) some(std::integral_constant<int, 4>(), c);
  for (; c + kLanes <= width; c += kLanes) some(std::integral_constant<int, 1>(), c);
  if (c == width) return;
  V32 sum = load_part(out + c, width - c);
  for (int64_t j = 0; j < n; ++j)
    sum = hn::MulAdd(all(weights[j]), load_part(rows[j] + c, width - c), sum);
  store_part(sum, out + c, width - c);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
