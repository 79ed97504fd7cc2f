#include "tessera/kernels/weights/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/weights/gemm.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/cpu.h"
#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/simd_inl.h"
#include "tessera/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// A tile: 28 of 32 registers of AVX-512 hold its sums, 12 of 16 of the others. Rows of b's piece are
// packed for all threads and stay in the third cache level, a block of a in the second.
constexpr bool kWide = HWY_TARGET <= HWY_AVX3;
constexpr int kRows = kWide ? 14 : 6;
constexpr int kColumns = 2 * kLanes;
constexpr int64_t kDepth = kWide ? 768 : 384;
constexpr int64_t kBlockRows = 8 * kRows;


// count vectors across, of which each is `along` apart, as columns of [depth][width]; what is
// missing of the width is zeros. across: from one to the next of the panel.
void pack(const float* from,
          int64_t across,
          int64_t along,
          int64_t count,
          int64_t width,
          int64_t depth,
          float* to) {
  if (count < width) std::memset(to, 0, static_cast<size_t>(width * depth) * sizeof(float));
  if (across == 1) {
    for (int64_t p = 0; p < depth; ++p)
      std::memcpy(to + p * width, from + p * along, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  // a few of k at a time: lines that are read and written stay in the first cache level
  constexpr int64_t kStep = 16;
  for (int64_t p = 0; p < depth; p += kStep) {
    const int64_t end = std::min(depth, p + kStep);
    for (int64_t i = 0; i < count; ++i) {
      const float* row = from + i * across;
      for (int64_t q = p; q < end; ++q) to[q * width + i] = row[q * along];
    }
  }
}

// out (+)= a panel of a times a panel of b
HWY_INLINE void tile(const float* HWY_RESTRICT a,
                     const float* HWY_RESTRICT b,
                     int64_t depth,
                     float* HWY_RESTRICT out,
                     int64_t stride,
                     int64_t rows,
                     int64_t columns,
                     bool add) {
  V32 sums[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = zero();
  for (int64_t p = 0; p < depth; ++p) {
    const V32 b0 = hn::Load(F32(), b), b1 = hn::Load(F32(), b + kLanes);
    __builtin_prefetch(b + 16 * kColumns);
    if constexpr (kWide) __builtin_prefetch(b + 16 * kColumns + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const V32 x = all(a[r]);
      sums[r][0] = hn::MulAdd(x, b0, sums[r][0]);
      sums[r][1] = hn::MulAdd(x, b1, sums[r][1]);
    }
    a += kRows;
    b += kColumns;
  }
  if (rows == kRows && columns == kColumns) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float* to = out + r * stride;
      store(add ? hn::Add(load(to), sums[r][0]) : sums[r][0], to);
      store(add ? hn::Add(load(to + kLanes), sums[r][1]) : sums[r][1], to + kLanes);
    }
    return;
  }
  HWY_ALIGN float all_of_it[kRows * kColumns];
  for (int r = 0; r < kRows; ++r) {
    hn::Store(sums[r][0], F32(), all_of_it + r * kColumns);
    hn::Store(sums[r][1], F32(), all_of_it + r * kColumns + kLanes);
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const float sum = all_of_it[r * kColumns + c];
      float& to = out[r * stride + c];
      to = add ? to + sum : sum;
    }
}

int64_t panel_columns() {
  return kColumns;
}
int64_t block_rows() {
  return kBlockRows;
}
int64_t piece_depth() {
  return kDepth;
}

void pack_panels(
    const MatrixView& b, int64_t n, int64_t k0, int64_t depth, int64_t begin, int64_t end, float* to) {
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t j = panel * kColumns;
    pack(b.data + k0 * b.row + j * b.column, b.column, b.row, std::min<int64_t>(kColumns, n - j),
         kColumns, depth, to + panel * kColumns * depth);
  }
}

// rows [row, row + rows) of the output, of some panels of columns
void block(const MatrixView& a,
           int64_t row,
           int64_t rows,
           int64_t n,
           int64_t k0,
           int64_t depth,
           const float* panels,
           int64_t first_panel,
           int64_t last_panel,
           float* out,
           int64_t out_stride,
           bool add) {
  float* packed = scratch<33>(kBlockRows * kDepth + 16 * kColumns);
  for (int64_t i = 0; i < rows; i += kRows)
    pack(a.data + (row + i) * a.row + k0 * a.column, a.row, a.column,
         std::min<int64_t>(kRows, rows - i), kRows, depth, packed + i * depth);
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    const int64_t j = panel * kColumns;
    for (int64_t i = 0; i < rows; i += kRows)
      tile(packed + i * depth, panels + j * depth, depth, out + (row + i) * out_stride + j,
           out_stride, std::min<int64_t>(kRows, rows - i), std::min<int64_t>(kColumns, n - j), add);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(panel_columns);
HWY_EXPORT(block_rows);
HWY_EXPORT(piece_depth);
HWY_EXPORT(pack_panels);
HWY_EXPORT(block);

void gemm(const MatrixView& a,
          const MatrixView& b,
          int64_t m,
          int64_t n,
          int64_t k,
          float* out,
          int64_t out_stride,
          bool add) {
  require(m >= 0 && n >= 0 && k >= 0 && (m <= 1 || out_stride >= n), "gemm",
          "m = {}, n = {}, k = {}, stride {}", m, n, k, out_stride);
  require((a.row == 1 || a.column == 1 || m * k <= 1) && (b.row == 1 || b.column == 1 || k * n <= 1),
          "gemm", "strides {}, {} and {}, {}; expected one of each to be 1", a.row, a.column, b.row,
          b.column);
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t i = 0; i < m && !add; ++i) std::fill_n(out + i * out_stride, n, 0.0F);
    return;
  }
  cap_targets();
  const int64_t columns = HWY_DYNAMIC_DISPATCH(panel_columns)(),
                rows = HWY_DYNAMIC_DISPATCH(block_rows)(),
                most = HWY_DYNAMIC_DISPATCH(piece_depth)();
  const int64_t n_panels = (n + columns - 1) / columns, n_blocks = (m + rows - 1) / rows;
  // where there are few blocks of rows each is cut by columns as well
  constexpr int64_t kTasks = 16, kLeastPanels = 8;
  const int64_t wanted = std::max<int64_t>(1, kTasks / n_blocks),
                each = std::max((n_panels + wanted - 1) / wanted, kLeastPanels),
                n_groups = (n_panels + each - 1) / each;
  // the last panel is read ahead of
  float* panels = scratch<34>(n_panels * columns * std::min(k, most) + 16 * columns);
  for (int64_t k0 = 0; k0 < k; k0 += most) {
    const int64_t depth = std::min(most, k - k0);
    parallel_for(n_panels, 4, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(pack_panels)(b, n, k0, depth, begin, end, panels);
    });
    parallel_in_turn(n_blocks * n_groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t row = task / n_groups * rows, group = task % n_groups;
        HWY_DYNAMIC_DISPATCH(block)
        (a, row, std::min(rows, m - row), n, k0, depth, panels, group * each,
         std::min(n_panels, (group + 1) * each), out, out_stride, add || k0 > 0);
      }
    });
  }
}

bool gemm_pays(int64_t m, int64_t n, int64_t k) {
  static const bool here = cpu_info().allowed >= CpuTarget::avx512 &&
                           cpu_info().model.find("AMD") != std::string::npos;
  return here && std::min({m, n, k}) >= 128 && m * n * k >= int64_t{1} << 28;
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
