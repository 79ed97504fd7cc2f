#include "tessera/kernels/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/matmul.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/blocks_inl.h"
#include "tessera/kernels/blocks.h"
#include "tessera/kernels/dot_inl.h"
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

// The blocking. It never shows in the result: it only says which dot products are in flight.
struct Blocking {
  int64_t rows;     // of x per pass over a panel; their accumulators stay in the second cache level
  int64_t columns;  // of y (rows of w) in a panel
  int64_t depth;    // of k in a panel: columns * depth floats fit the first cache level
  bool copy;        // whether float32 weights are copied into the panel too
};

inline Blocking blocking_for(const MatmulProblem& p) {
  const bool few = p.m < 8;
  Blocking b{};
  b.rows = 192;
  b.columns = few ? 4 : 16;
  b.copy = !few || p.type != DType::f32;
  // equal pieces of k, each of whole blocks
  const int64_t unit = std::max<int64_t>(p.block_elements, 32);
  const int64_t limit = few ? 1024 : 384;
  const int64_t pieces = std::max<int64_t>(1, (p.k + limit - 1) / limit);
  b.depth = std::max(unit, (p.k + pieces * unit - 1) / (pieces * unit) * unit);
  return b;
}

}  // namespace tessera::kernels
#endif  // TESSERA_KERNELS_MATMUL_ONCE

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

struct Panel {
  const float* w;
  int64_t stride;  // between rows of w
};

// rows first .. first + columns of w at depth k0 .. k0 + depth
HWY_INLINE Panel make_panel(const MatmulProblem& p,
                            bool copy,
                            int64_t first,
                            int64_t columns,
                            int64_t k0,
                            int64_t depth,
                            float* buffer) {
  if (!copy) return {reinterpret_cast<const float*>(p.w) + first * p.k + k0, p.k};
  const int64_t stride = (depth + kLanes - 1) / kLanes * kLanes;
  for (int64_t j = 0; j < columns; ++j) {
    const uint8_t* src = p.w + (first + j) * p.row_bytes + k0 / p.block_elements * p.block_bytes;
    dequantize_run(p.type, src, depth, buffer + j * stride);
  }
  return {buffer, stride};
}

// y[row][first ...] = sums of the accumulators + bias
HWY_INLINE void finish_row(
    const MatmulProblem& p, int64_t row, int64_t first, int64_t columns, const float* acc) {
  for (int64_t j = 0; j < columns; j += 4) {
    const int64_t count = std::min<int64_t>(4, columns - j);
    const auto at = [&](int64_t c)
                        HWY_ATTR { return load(acc + (j + std::min(c, count - 1)) * kLanes); };
    HWY_ALIGN float sums[4];
    hn::Store(sums_of_4(at(0), at(1), at(2), at(3)), F32x4(), sums);
    float* y = p.y + row * p.y_stride + first + j;
    for (int64_t c = 0; c < count; ++c) y[c] = p.bias ? sums[c] + p.bias[first + j + c] : sums[c];
  }
}

// sum[j] += one block of four rows of w times x. Four sums hide the latency of each other's
// additions if they advance together: small blocks follow each other closely enough to go straight
// from the block into the sum, large ones are unpacked first.
template <class Block>
HWY_INLINE void add_blocks(const float* x, const uint8_t* (&w)[4], V32 (&sum)[4]) {
  if constexpr (Block::elements <= 32) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      V32 partial = sum[j];
      Block::unpack(w[j],
                    [&](int e, V32 v) HWY_ATTR { partial = hn::MulAdd(load(x + e), v, partial); });
      sum[j] = partial;
    }
  } else {
    HWY_ALIGN float values[4 * Block::elements];
    for (int j = 0; j < 4; ++j) {
      float* row = values + j * Block::elements;
      Block::unpack(w[j], [&](int e, V32 v) HWY_ATTR { store(v, row + e); });
    }
    for (int e = 0; e < Block::elements; e += kLanes) {
      const V32 xs = load(x + e);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
        sum[j] = hn::MulAdd(xs, load(values + j * Block::elements + e), sum[j]);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) w[j] += Block::bytes;
}

// One row of x, without panels. The order of a sum is that of dot_accumulate.
template <class Block>
HWY_INLINE void row_columns(const MatmulProblem& p, int64_t begin, int64_t end) {
  for (int64_t first = begin; first < end; first += 4) {
    const int64_t columns = std::min<int64_t>(4, end - first);
    const uint8_t* w[4];
    V32 sum[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      w[j] = p.w + (first + std::min<int64_t>(j, columns - 1)) * p.row_bytes;
      sum[j] = zero();
    }
    int64_t c = 0;
    for (; c + Block::elements <= p.k; c += Block::elements) add_blocks<Block>(p.x + c, w, sum);
    if constexpr (is_halves<Block>)
      if (c < p.k)
        for (int j = 0; j < 4; ++j)
          sum[j] = hn::MulAdd(load_part(p.x + c, p.k - c), Block::rest(w[j], p.k - c), sum[j]);
    HWY_ALIGN float acc[4 * kLanes];
    for (int j = 0; j < 4; ++j) hn::Store(sum[j], F32(), acc + j * kLanes);
    finish_row(p, 0, first, columns, acc);
  }
}

// columns begin .. end of y, all rows
void matmul_columns(const MatmulProblem& p, int64_t begin, int64_t end) {
  if (p.m == 1 && p.type != DType::f32)
    return with_block(p.type, [&]<class Block>() HWY_ATTR { row_columns<Block>(p, begin, end); });
  const Blocking b = blocking_for(p);
  float* panel_buffer = scratch<0>(b.columns * (b.depth + kLanes));
  float* acc = scratch<1>(std::min(b.rows, p.m) * b.columns * kLanes);
  for (int64_t first = begin; first < end; first += b.columns) {
    const int64_t columns = std::min(b.columns, end - first);
    for (int64_t row0 = 0; row0 < p.m; row0 += b.rows) {
      const int64_t rows = std::min(b.rows, p.m - row0);
      std::memset(acc, 0, static_cast<size_t>(rows * columns * kLanes) * sizeof(float));
      for (int64_t k0 = 0; k0 < p.k; k0 += b.depth) {
        const int64_t depth = std::min(b.depth, p.k - k0);
        const Panel w = make_panel(p, b.copy, first, columns, k0, depth, panel_buffer);
        dot_block({p.x + row0 * p.x_stride + k0, p.x_stride, rows}, {w.w, w.stride, columns}, depth,
                  acc);
      }
      for (int64_t i = 0; i < rows; ++i)
        finish_row(p, row0 + i, first, columns, acc + i * columns * kLanes);
    }
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
