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

// Queries that share each load of a row.
#if HWY_MAX_BYTES == 64
constexpr int kListedHeads = 6;  // 24 sums of 32 registers
#else
constexpr int kListedHeads = 3;  // 12 of 16
#endif

// body(count, first): n queries, a few at a time
template <class Body>
HWY_INLINE void for_listed_heads(int64_t n, const Body& body) {
  int64_t h = 0;
  const auto some = [&](auto count) HWY_ATTR {
    for (; h + count <= n; h += count) body(count, h);
  };
  some(std::integral_constant<int, kListedHeads>());
  if constexpr (kListedHeads > 4) some(std::integral_constant<int, 4>());
  some(std::integral_constant<int, 2>());
  some(std::integral_constant<int, 1>());
}

// out[h * out_stride + j] = q[h * q_stride ..] . rows[j]; the order of a sum's additions depends on
// neither j nor the queries
template <int heads>
HWY_INLINE void products_of_heads(const float* q,
                                  int64_t q_stride,
                                  int64_t width,
                                  const float* const* rows,
                                  int64_t n,
                                  float* out,
                                  int64_t out_stride) {
  const auto some = [&](auto count, int64_t j) HWY_ATTR {
    constexpr int kCount = decltype(count)::value;
    V32 sum[heads][kCount];
#pragma GCC unroll 8
    for (int h = 0; h < heads; ++h)
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) sum[h][i] = zero();
    const auto step = [&](auto&& read, int64_t c) HWY_ATTR {
      V32 x[heads];
#pragma GCC unroll 8
      for (int h = 0; h < heads; ++h) x[h] = read(q + h * q_stride + c);
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) {
        const V32 key = read(rows[j + i] + c);
#pragma GCC unroll 8
        for (int h = 0; h < heads; ++h) sum[h][i] = hn::MulAdd(x[h], key, sum[h][i]);
      }
    };
    const int64_t whole = width / kLanes * kLanes;
    for (int64_t c = 0; c < whole; c += kLanes)
      step([](const float* p) HWY_ATTR { return load(p); }, c);
    if (whole != width)
      step([&](const float* p) HWY_ATTR { return load_part(p, width - whole); }, whole);
#pragma GCC unroll 8
    for (int h = 0; h < heads; ++h) {
      float* to = out + h * out_stride + j;
      if constexpr (kCount % 4 == 0) {
#pragma GCC unroll 8
        for (int i = 0; i < kCount; i += 4)
          hn::StoreU(sums_of_4(sum[h][i], sum[h][i + 1], sum[h][i + 2], sum[h][i + 3]), F32x4(),
                     to + i);
      } else {
        for (int i = 0; i < kCount; ++i) to[i] = sum_of(sum[h][i]);
      }
    }
  };
  constexpr int kRows = heads == 1 ? 8 : 4;
  int64_t j = 0;
  for (; j + kRows <= n; j += kRows) some(std::integral_constant<int, kRows>(), j);
  for (; j < n; ++j) some(std::integral_constant<int, 1>(), j);
}

// out[j] = q . rows[j]
HWY_INLINE void products_of_rows(
    const float* q, int64_t width, const float* const* rows, int64_t n, float* out) {
  products_of_heads<1>(q, 0, width, rows, n, out, 0);
}

// out[h * out_stride + c] += sum over n rows of weights[h * stride + j] rows[j][c], rows ascending
template <int heads>
HWY_INLINE void add_rows_to_heads(const float* weights,
                                  int64_t stride,
                                  const float* const* rows,
                                  int64_t n,
                                  int64_t width,
                                  float* out,
                                  int64_t out_stride) {
  const auto some = [&](auto count, int64_t c) HWY_ATTR {
    constexpr int kCount = decltype(count)::value;
    V32 sum[heads][kCount];
#pragma GCC unroll 8
    for (int h = 0; h < heads; ++h)
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) sum[h][i] = load(out + h * out_stride + c + i * kLanes);
    for (int64_t j = 0; j < n; ++j) {
      V32 x[kCount];
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) x[i] = load(rows[j] + c + i * kLanes);
#pragma GCC unroll 8
      for (int h = 0; h < heads; ++h) {
        const V32 weight = all(weights[h * stride + j]);
#pragma GCC unroll 8
        for (int i = 0; i < kCount; ++i) sum[h][i] = hn::MulAdd(weight, x[i], sum[h][i]);
      }
    }
#pragma GCC unroll 8
    for (int h = 0; h < heads; ++h)
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) store(sum[h][i], out + h * out_stride + c + i * kLanes);
  };
  int64_t c = 0;
  if constexpr (heads == 1)
    for (; c + 8 * kLanes <= width; c += 8 * kLanes) some(std::integral_constant<int, 8>(), c);
  for (; c + 4 * kLanes <= width; c += 4 * kLanes) some(std::integral_constant<int, 4>(), c);
  for (; c + kLanes <= width; c += kLanes) some(std::integral_constant<int, 1>(), c);
  if (c == width) return;
  for (int h = 0; h < heads; ++h) {
    V32 sum = load_part(out + h * out_stride + c, width - c);
    for (int64_t j = 0; j < n; ++j)
      sum = hn::MulAdd(all(weights[h * stride + j]), load_part(rows[j] + c, width - c), sum);
    store_part(sum, out + h * out_stride + c, width - c);
  }
}

// out[c] += sum over n rows of weights[j] rows[j][c], rows ascending
HWY_INLINE void add_rows(
    const float* weights, const float* const* rows, int64_t n, int64_t width, float* out) {
  add_rows_to_heads<1>(weights, 0, rows, n, width, out, 0);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
