#include "tessera/kernels/weights/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/weights/matmul.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/weights/blocks_inl.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/dot_inl.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"

#ifndef TESSERA_KERNELS_MATMUL_ONCE
#define TESSERA_KERNELS_MATMUL_ONCE
namespace tessera::kernels {

struct MatmulProblem {
  const float* x;
  int64_t m, k, x_stride;
  DType type;
  const uint8_t* w;
  int64_t n;
  const float* bias;
  float* y;
  int64_t y_stride;
  // of the storage type
  int64_t block_elements, block_bytes, row_bytes;
};

}  // namespace tessera::kernels
#endif  // TESSERA_KERNELS_MATMUL_ONCE

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// The blocking. It never shows in the result: it only decides which dot products are in flight. A
// panel of w stays in the second cache level, dequantized once for all rows; a piece of a strip of
// rows of x, and what is left of the strip's sums between the pieces of k, in the first one.
struct Blocking {
  int64_t columns;  // of y (rows of w) in a panel, in fours
  int64_t depth;    // of k in a piece
  bool copy;        // whether float32 weights are copied into the panel too

  explicit Blocking(const MatmulProblem& p) {
    // a panel of 384 KiB; a strip of 24 KiB, or half of that with its sums
    constexpr int64_t kPanelFloats = 3 << 15, kWhole = 6144 / kTileRows, kPiece = kWhole / 2;
    const bool whole = p.k <= kWhole;
    columns =
        std::clamp<int64_t>(kPanelFloats / std::max<int64_t>(1, p.k) / 4 * 4, 4, whole ? 64 : 40);
    const int64_t pieces = whole ? 1 : (p.k + kPiece - 1) / kPiece;
    depth = whole ? p.k : (p.k + pieces * 32 - 1) / (pieces * 32) * 32;
    copy = p.m >= 8 || p.type != DType::f32;
  }
};

// Bytes of a row of w from which on two large blocks are faster than four, as four
// rows and the next four leave the first cache level; and up to which they are: beyond, neither
// stays there.
constexpr int64_t kWideRow = 1280, kWidest = 6144;
// Bytes that have to be on their way while others are multiplied.
constexpr int64_t kAhead = 1600;
// Rows of x that are multiplied without a panel, and at a time. With 32 registers the sums of eight
// rows and two columns stay in them, with a block of each column that is unpacked once for all
// rows; with 16 those of two, and unpacking twice is as fast as a panel.
#if HWY_MAX_BYTES == 64
constexpr int kFewRows = 8, kFewAtOnce = 8;
#else
constexpr int kFewRows = 4, kFewAtOnce = 2;
#endif

struct Panel {
  const float* w;
  int64_t stride;  // between rows of w
};

// an odd number of cache lines, so that rows do not meet in a few cache sets
HWY_INLINE int64_t odd_lines(int64_t floats) {
  return (floats + 31) / 32 * 32 + 16;
}

// rows first .. first + columns of w
HWY_INLINE Panel
make_panel(const MatmulProblem& p, bool copy, int64_t first, int64_t columns, float* buffer) {
  if (!copy) return {reinterpret_cast<const float*>(p.w) + first * p.k, p.k};
  const int64_t stride = odd_lines(p.k);
  for (int64_t j = 0; j < columns; ++j)
    dequantize_run(p.type, p.w + (first + j) * p.row_bytes, p.k, buffer + j * stride);
  return {buffer, stride};
}

// y[row][first ...] = up to four sums + bias
HWY_INLINE void store_sums(
    const MatmulProblem& p, int64_t row, int64_t first, int64_t count, hn::Vec<F32x4> four) {
  HWY_ALIGN float sums[4];
  hn::Store(four, F32x4(), sums);
  float* y = p.y + row * p.y_stride + first;
  for (int64_t c = 0; c < count; ++c) y[c] = p.bias ? sums[c] + p.bias[first + c] : sums[c];
}

// the same of as many accumulators' lanes as there are columns
HWY_INLINE void finish_row(
    const MatmulProblem& p, int64_t row, int64_t first, int64_t columns, const float* acc) {
  for (int64_t j = 0; j < columns; j += 4) {
    const int64_t count = std::min<int64_t>(4, columns - j);
    const auto at = [&](int64_t c)
                        HWY_ATTR { return load(acc + (j + std::min(c, count - 1)) * kLanes); };
    store_sums(p, row, first + j, count, sums_of_4(at(0), at(1), at(2), at(3)));
  }
}

// y[row0 ... row0 + rows][first ...] = products of rows of x and of the panel + bias; acc: room for
// sums
template <int rows>
HWY_INLINE void multiply_strip(const MatmulProblem& p,
                               const Blocking& b,
                               int64_t row0,
                               RowsView w,
                               int64_t first,
                               float* acc) {
  const float* x = p.x + row0 * p.x_stride;
  if (b.depth >= p.k) {
    float* y = p.y + row0 * p.y_stride + first;
    dot_products<rows>(x, p.x_stride, w, p.k, y, p.y_stride);
    for (int r = 0; r < rows && p.bias != nullptr; ++r, y += p.y_stride)
      for (int64_t j = 0; j < w.count; ++j) y[j] += p.bias[first + j];
    return;
  }
  std::memset(acc, 0, static_cast<size_t>(rows * w.count * kLanes) * sizeof(float));
  for (int64_t k0 = 0; k0 < p.k; k0 += b.depth)
    dot_strip<rows>(x + k0, p.x_stride, {w.data + k0, w.stride, w.count},
                    std::min(b.depth, p.k - k0), acc);
  for (int r = 0; r < rows; ++r)
    finish_row(p, row0 + r, first, w.count, acc + r * w.count * kLanes);
}

template <int bytes>
HWY_INLINE void prefetch_bytes(const uint8_t* p) {
#pragma GCC unroll 16
  for (int i = 0; i < bytes; i += 64) prefetch(p + i);
}

// sum[i][j] += row i of x times elements `first` .. of a block of row j of w that unpack(j, emit)
// gives. A vector of x serves all columns: with many rows, loads are as dear as products.
template <int elements, int rows, int columns, class Unpack>
HWY_INLINE void add_unpacked(const float* const (&x)[rows],
                             int64_t at,
                             int first,
                             const Unpack& unpack,
                             V32 (&sum)[rows][columns]) {
  constexpr int kVectors = elements / kLanes;
  V32 ws[columns][kVectors];
#pragma GCC unroll 4
  for (int j = 0; j < columns; ++j)
    unpack(j, [&](int e, V32 v) HWY_ATTR { ws[j][(e - first) / kLanes] = v; });
#pragma GCC unroll 4
  for (int e = 0; e < kVectors; ++e)
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const V32 xs = load(x[i] + at + first + e * kLanes);
#pragma GCC unroll 4
      for (int j = 0; j < columns; ++j) sum[i][j] = hn::MulAdd(xs, ws[j][e], sum[i][j]);
    }
}

// sum[i][j] += row i of x times one block of row j of w. The sums hide the latency of each other's
// additions if they advance together, so rows of w take turns block by block, in large blocks group
// by group. `ahead` is where the blocks of a group of rows to come lie, one after another.
template <class Block, int rows, int columns>
HWY_INLINE void add_blocks(const float* const (&x)[rows],
                           int64_t at,
                           const uint8_t* const (&w)[columns],
                           const uint8_t* ahead,
                           V32 (&sum)[rows][columns]) {
  const auto times_x = [&](int j) HWY_ATTR {
    return [&, j](int e, V32 v) HWY_ATTR {
#pragma GCC unroll 4
      for (int i = 0; i < rows; ++i) sum[i][j] = hn::MulAdd(load(x[i] + at + e), v, sum[i][j]);
    };
  };
  constexpr int kBytes = columns * Block::bytes;
  constexpr bool kOnce = rows > 2;
  if constexpr (Block::elements <= 32) {
    prefetch_bytes<kBytes>(ahead);
    if constexpr (kOnce) {
      const auto unpack = [&](int j, const auto& emit) HWY_ATTR { Block::unpack(w[j], emit); };
      add_unpacked<Block::elements>(x, at, 0, unpack, sum);
    } else {
#pragma GCC unroll 4
      for (int j = 0; j < columns; ++j) Block::unpack(w[j], times_x(j));
    }
  } else {
    typename Block::Scales scales[columns];
#pragma GCC unroll 4
    for (int j = 0; j < columns; ++j) Block::read_scales(w[j], scales[j]);
    constexpr int kGroups = Block::elements / Block::group_elements;
#pragma GCC unroll 1
    for (int g = 0; g < kGroups; ++g, ahead += kBytes / kGroups) {
      prefetch_bytes<kBytes / kGroups>(ahead);
      if constexpr (kOnce) {
        const auto unpack = [&](int j, const auto& emit)
                                HWY_ATTR { Block::group(w[j], scales[j], g, emit); };
        add_unpacked<Block::group_elements>(x, at, g * Block::group_elements, unpack, sum);
      } else {
#pragma GCC unroll 4
        for (int j = 0; j < columns; ++j) Block::group(w[j], scales[j], g, times_x(j));
      }
    }
  }
}

// y[row ... row + m][first ... first + count] without a panel; m and count: at most `rows` and
// `columns`. The order of a sum is that of dot_accumulate.
//
// Memory is what few rows wait for: rows of w end after a few hundred bytes, before hardware has
// seen a stream in them. So while a group of rows is multiplied a later one is asked for, block by
// block: lines asked for all at once would wait for each other, and the products for them.
template <class Block, int rows, int columns>
HWY_INLINE void multiply_group(
    const MatmulProblem& p, int64_t row, int64_t m, int64_t first, int64_t count) {
  const float* x[rows];
  const uint8_t* w[columns];
  V32 sum[rows][columns];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) x[i] = p.x + (row + std::min<int64_t>(i, m - 1)) * p.x_stride;
#pragma GCC unroll 4
  for (int j = 0; j < columns; ++j) {
    w[j] = p.w + (first + std::min<int64_t>(j, count - 1)) * p.row_bytes;
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) sum[i][j] = zero();
  }
  const int64_t group_bytes = std::max<int64_t>(1, columns * p.row_bytes);
  const uint8_t* ahead = w[0] + (kAhead + group_bytes - 1) / group_bytes * group_bytes;
  constexpr int64_t step = columns * Block::bytes;
  int64_t c = 0;
  for (; c + Block::elements <= p.k; c += Block::elements, ahead += step) {
    add_blocks<Block>(x, c, w, ahead, sum);
#pragma GCC unroll 4
    for (int j = 0; j < columns; ++j) w[j] += Block::bytes;
  }
  if constexpr (is_plain<Block>)
    if (c < p.k)
#pragma GCC unroll 4
      for (int j = 0; j < columns; ++j) {
        const V32 rest = Block::rest(w[j], p.k - c);
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i)
          sum[i][j] = hn::MulAdd(load_part(x[i] + c, p.k - c), rest, sum[i][j]);
      }
  if constexpr (rows > columns) {
    // four rows at a time
    HWY_ALIGN float sums[columns][(rows + 3) / 4 * 4];
#pragma GCC unroll 4
    for (int j = 0; j < columns; ++j)
#pragma GCC unroll 2
      for (int i = 0; i < rows; i += 4)
        hn::Store(sums_of_4(sum[i][j], sum[i + 1][j], sum[std::min(i + 2, rows - 1)][j],
                            sum[std::min(i + 3, rows - 1)][j]),
                  F32x4(), sums[j] + i);
    for (int64_t i = 0; i < m; ++i) {
      float* y = p.y + (row + i) * p.y_stride + first;
      for (int64_t j = 0; j < count; ++j)
        y[j] = p.bias ? sums[j][i] + p.bias[first + j] : sums[j][i];
    }
  } else {
#pragma GCC unroll 4
    for (int i = 0; i < rows; ++i)
      if (i < m)
        store_sums(p, row + i, first, count,
                   sums_of_4(sum[i][0], sum[i][1], sum[i][2 % columns], sum[i][3 % columns]));
  }
}

// the same of columns begin .. end of y
template <class Block, int rows, int columns>
HWY_INLINE void multiply_groups(const MatmulProblem& p, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; j += columns)
    for (int64_t i = 0; i < p.m; i += rows)
      multiply_group<Block, rows, columns>(p, i, std::min<int64_t>(rows, p.m - i), j,
                                           std::min<int64_t>(columns, end - j));
}

// Not inlined: a function that held those of all types would take the compiler minutes.
template <class Block>
HWY_NOINLINE void multiply_few(const MatmulProblem& p, int64_t begin, int64_t end) {
  if constexpr (kFewAtOnce > 2) {
    if (p.m > 6) return multiply_groups<Block, kFewAtOnce, 2>(p, begin, end);
    if (p.m > 4) return multiply_groups<Block, 6, 2>(p, begin, end);
    if (p.m > 2) return multiply_groups<Block, 4, 2>(p, begin, end);
  }
  if (p.m > 1) return multiply_groups<Block, 2, 2>(p, begin, end);
  if constexpr (Block::elements > 32)
    if (p.row_bytes > kWideRow && p.row_bytes < kWidest)
      return multiply_groups<Block, 1, 2>(p, begin, end);
  multiply_groups<Block, 1, 4>(p, begin, end);
}

// columns begin .. end of y, all rows
void matmul_columns(const MatmulProblem& p, int64_t begin, int64_t end) {
  if (p.m <= kFewRows)
    return with_block(p.type, [&]<class Block>() HWY_ATTR { multiply_few<Block>(p, begin, end); });
  const Blocking b(p);
  float* buffer = b.copy ? scratch<0>(b.columns * odd_lines(p.k)) : nullptr;
  float* acc = scratch<1>(kTileRows * b.columns * kLanes);
  for (int64_t first = begin; first < end; first += b.columns) {
    const int64_t columns = std::min(b.columns, end - first);
    const Panel panel = make_panel(p, b.copy, first, columns, buffer);
    const RowsView w{panel.w, panel.stride, columns};
    int64_t i = 0;
    for (; i + kTileRows <= p.m; i += kTileRows) multiply_strip<kTileRows>(p, b, i, w, first, acc);
    if constexpr (kTileRows > 4)
      for (; i + 4 <= p.m; i += 4) multiply_strip<4>(p, b, i, w, first, acc);
    for (; i + 2 <= p.m; i += 2) multiply_strip<2>(p, b, i, w, first, acc);
    for (; i < p.m; ++i) multiply_strip<1>(p, b, i, w, first, acc);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(matmul_columns);

void matmul(const float* x,
            int64_t m,
            int64_t k,
            int64_t x_stride,
            DType w_type,
            const void* w,
            int64_t n,
            const float* bias,
            float* y,
            int64_t y_stride) {
  require(can_dequantize(w_type), "matmul", "weights of type {}", name_of(w_type));
  const DTypeLayout& layout = layout_of(w_type);
  require(m >= 0 && n >= 0 && k >= 0, "matmul", "m = {}, n = {}, k = {}", m, n, k);
  require(k % layout.block_elements == 0, "matmul", "k = {}: expected whole blocks of {} ({})", k,
          layout.block_elements, layout.name);
  require(m <= 1 || (x_stride >= k && y_stride >= n), "matmul",
          "strides {} and {}: rows have {} and {}", x_stride, y_stride, k, n);
  if (m == 0 || n == 0) return;
  cap_targets();
  const MatmulProblem problem{x,
                              m,
                              k,
                              x_stride,
                              w_type,
                              static_cast<const uint8_t*>(w),
                              n,
                              bias,
                              y,
                              y_stride,
                              layout.block_elements,
                              layout.block_bytes,
                              k / layout.block_elements * layout.block_bytes};
  // in tiles of 4 columns; a task has at least 2^16 multiply-adds
  constexpr int64_t kTile = 4;
  const int64_t grain = 1 + (int64_t{1} << 16) / (kTile * std::max<int64_t>(1, k) * m);
  parallel_for((n + kTile - 1) / kTile, grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(matmul_columns)(problem, begin * kTile, std::min(end * kTile, n));
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
