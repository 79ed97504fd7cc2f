// Many dot products at once: the register tile shared by matmul.cpp and attention.cpp.
#if defined(TESSERA_KERNELS_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_DOT_INL_H_
#undef TESSERA_KERNELS_DOT_INL_H_
#else
#define TESSERA_KERNELS_DOT_INL_H_
#endif

#include <algorithm>

#include "tessera/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// Rows of x against columns (rows of w) in registers: 12 accumulators, 3 x and 1 w of 16 registers;
// with 32 registers twice as many rows.
#if HWY_MAX_BYTES == 64
constexpr int kTileRows = 6;
#else
constexpr int kTileRows = 3;
#endif
constexpr int kTileColumns = 4;

struct RowsView {
  const float* data;
  int64_t stride;
  int64_t count;
};

struct Nothing {
  HWY_INLINE void operator()(int64_t) const {}
};

// sum[i][j] += x[i][c] * w[j][c], lane l taking c = l, l + kLanes, ... in ascending order.
// The order of a sum's additions does not depend on the tile that holds it. before(c) is called
// before the columns from c on.
template <int rows, int columns, class Before = Nothing>
HWY_INLINE void dot_accumulate(const float* x,
                               int64_t x_stride,
                               const float* w,
                               int64_t w_stride,
                               int64_t depth,
                               V32 (&sum)[rows][columns],
                               const Before& before = {}) {
  const auto step = [&](auto&& read, int64_t c) HWY_ATTR {
    before(c);
    V32 xs[rows];
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) xs[i] = read(x + i * x_stride + c);
#pragma GCC unroll 8
    for (int j = 0; j < columns; ++j) {
      const V32 ws = read(w + j * w_stride + c);
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) sum[i][j] = hn::MulAdd(xs[i], ws, sum[i][j]);
    }
  };
  const int64_t whole = depth / kLanes * kLanes;
  for (int64_t c = 0; c < whole; c += kLanes)
    step([](const float* p) HWY_ATTR { return load(p); }, c);
  if (whole != depth)
    step([&](const float* p) HWY_ATTR { return load_part(p, depth - whole); }, whole);
}

/// acc[(i * acc_columns + j) * kLanes ...] += the lanes of the dot products of a tile.
template <int rows, int columns>
HWY_INLINE void dot_tile(const float* x,
                         int64_t x_stride,
                         const float* w,
                         int64_t w_stride,
                         int64_t depth,
                         float* acc,
                         int64_t acc_columns) {
  V32 sum[rows][columns];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < columns; ++j) sum[i][j] = load(acc + (i * acc_columns + j) * kLanes);
  dot_accumulate<rows, columns>(x, x_stride, w, w_stride, depth, sum);
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < columns; ++j) store(sum[i][j], acc + (i * acc_columns + j) * kLanes);
}

/// y[i * y_stride + j] = x[i] . w[j] for all columns (rows of w) and `rows` rows of x.
template <int rows, class Before = Nothing>
HWY_INLINE void dot_products(const float* x,
                             int64_t x_stride,
                             RowsView w,
                             int64_t depth,
                             float* y,
                             int64_t y_stride,
                             const Before& before = {}) {
  int64_t j = 0;
  for (; j + 4 <= w.count; j += 4) {
    V32 sum[rows][4];
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
      for (int c = 0; c < 4; ++c) sum[i][c] = zero();
    dot_accumulate<rows, 4>(x, x_stride, w.data + j * w.stride, w.stride, depth, sum, before);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
      hn::StoreU(sums_of_4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]), F32x4(),
                 y + i * y_stride + j);
  }
  for (; j < w.count; ++j) {
    V32 sum[rows][1];
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) sum[i][0] = zero();
    dot_accumulate<rows, 1>(x, x_stride, w.data + j * w.stride, w.stride, depth, sum);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) y[i * y_stride + j] = sum_of(sum[i][0]);
  }
}

/// acc[rows][w.count][kLanes] += the lanes of the dot products of rows of x with all rows of w.
template <int rows>
HWY_INLINE void dot_strip(const float* x, int64_t x_stride, RowsView w, int64_t depth, float* acc) {
  int64_t j = 0;
  for (; j + kTileColumns <= w.count; j += kTileColumns)
    dot_tile<rows, kTileColumns>(x, x_stride, w.data + j * w.stride, w.stride, depth,
                                 acc + j * kLanes, w.count);
  for (; j < w.count; ++j)
    dot_tile<rows, 1>(x, x_stride, w.data + j * w.stride, w.stride, depth, acc + j * kLanes,
                      w.count);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#endif  // toggling guard
