#include "tessera/kernels/weights/digit_tiles.h"

// processors with tiles have AVX3_DL as well; the portable target, always compiled, has nothing
// here
#define HWY_WANT_AVX3_DL
#include <hwy/detect_targets.h>
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/weights/digit_tiles.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"
#include "tessera/kernels/tiles.h"
#include "tessera/kernels/weights/digits_inl.h"

#ifndef TESSERA_KERNELS_DIGIT_TILES_ONCE
#define TESSERA_KERNELS_DIGIT_TILES_ONCE
namespace tessera::kernels {

constexpr int64_t kTileRows = 16, kPanelColumns = 32;

/// The loops for one type of weights and k.
struct DigitTileKernels {
  int64_t rows_floats, panel_floats;  // that 16 rows of x, and a panel of w, take
  /// x from `row` on, up to 16 rows.
  void (*spread)(const DigitProblem& p, int64_t row, int64_t rows, float* to);
  /// w from `first` on, up to 32 rows.
  void (*pack)(const DigitProblem& p, int64_t first, int64_t count, float* to);
  /// y[row ... row + rows][first ... first + count], of up to 32 rows.
  void (*multiply)(const DigitProblem& p,
                   const float* x,
                   int64_t row,
                   int64_t rows,
                   const float* panel,
                   int64_t first,
                   int64_t count);
};

}  // namespace tessera::kernels
#endif  // TESSERA_KERNELS_DIGIT_TILES_ONCE

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

// Digits and codes are whole numbers of few bits, which bfloat16 has, and 128 times a digit as
// well. 32 codes below 32 in size times 127 * 128 stay below 2^24, so that float32 sums of their
// products are exact: both digits meet in one tile, whose numbers need not be converted. Tiles of
// bytes would be half empty, as deep as two runs, and need a tile for each digit.
template <class Block>
concept FitsTiles = Block::run == 32 && Block::offset <= 16;

constexpr int64_t kTileFloats = 256;
// a row tile's s and s sum_e v_e of a block of 32
constexpr int64_t kScales = 2 * kTileRows;

// of 16 rows of x: [k / 32][2 digits] tiles, the high digits times 128, then [k / 32] scales
int64_t rows_floats(int64_t k) {
  return k / 32 * (2 * kTileFloats + kScales);
}
// of 32 rows of w: [k / 32] pairs of tiles, then d and m
int64_t panel_floats(int64_t k) {
  return k / 32 * (2 * kTileFloats + 2 * kPanelColumns);
}

// 32 bfloat16
HWY_INLINE V32 in_bf16(V32 lower, V32 upper) {
  V32 out;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(out.raw) : "v"(upper.raw), "v"(lower.raw));
  return out;
}

// 16 bytes as floats
HWY_INLINE VI widened(const uint8_t* p) {
  const hn::Rebind<int8_t, I32> narrow;
  return hn::PromoteTo(I32(), hn::LoadU(narrow, reinterpret_cast<const int8_t*>(p)));
}

void spread(const DigitProblem& p, int64_t row, int64_t rows, float* to) {
  const int64_t blocks = p.x.k / 32;
  float* s = to + blocks * 2 * kTileFloats;
  if (rows < kTileRows) std::memset(to, 0, static_cast<size_t>(rows_floats(p.x.k)) * sizeof(float));
  for (int64_t b = 0; b < blocks; ++b, to += 2 * kTileFloats, s += kScales) {
    const uint8_t* digits = p.x.codes + row * p.x.row_codes + 64 * b;
    const RoundedBlock* of_row = p.x.blocks + row * blocks + b;
    for (int64_t i = 0; i < rows; ++i, digits += p.x.row_codes, of_row += blocks) {
      const auto high = [&](int at)
                            HWY_ATTR { return to_float(hn::ShiftLeft<7>(widened(digits + at))); };
      store(in_bf16(high(0), high(16)), to + i * kLanes);
      store(in_bf16(to_float(widened(digits + 32)), to_float(widened(digits + 48))),
            to + kTileFloats + i * kLanes);
      s[i] = of_row->s;
      s[kTileRows + i] = of_row->total;
    }
  }
}

template <class Block>
HWY_NOINLINE void pack(const DigitProblem& p, int64_t first, int64_t count, float* to) {
  constexpr int kGroups = Block::elements / 32, kPairs = 16;
  HWY_ALIGN float pairs[kPanelColumns][kPairs];
  float* d = to + p.x.k / 32 * 2 * kTileFloats;
  float* m = d + p.x.k / 32 * kPanelColumns;
  const uint8_t* w = p.w + first * p.row_bytes;
  const uint8_t* ahead = w + kPanelColumns * p.row_bytes;
  for (int64_t c = 0; c < p.x.k; c += Block::elements, w += Block::bytes) {
    const auto block = [&](int64_t j) HWY_ATTR { return w + std::min(j, count - 1) * p.row_bytes; };
    factors_of_columns<Block, kPanelColumns>(block, d, m);
    d += kGroups * kPanelColumns;
    m += kGroups * kPanelColumns;
#pragma GCC unroll 1
    for (int g = 0; g < kGroups; ++g, to += 2 * kTileFloats) {
      constexpr int kAsk = kPanelColumns * Block::bytes / kGroups;
      ask_for<kAsk>(ahead);
      ahead += kAsk;
      for (int64_t j = 0; j < kPanelColumns; ++j) {
        HWY_ALIGN uint8_t codes[32];
        hn::Store(hn::BitCast(Bytes(), signed_from(Block::codes(block(j), g, 0), Block::offset)),
                  Bytes(), codes);
        hn::Store(in_bf16(to_float(widened(codes)), to_float(widened(codes + 16))), F32(),
                  pairs[j]);
      }
      for (int64_t j = 0; j < kPanelColumns; j += 4)
        transpose_four_rows(pairs[j], kPairs, kPairs, to + j, kPanelColumns);
    }
  }
}

// While the products of a block of 32 are added up, the sums of the one before are stored: of its
// own nothing waits for.
template <int tiles, bool after_another>
HWY_INLINE void start_block(const float* x, int64_t next_rows, const float* w, float* sums) {
  constexpr int64_t kRow = 64, kPanelRow = 128;
  load_tile<4>(x, kRow);
  load_tile<6>(w, kPanelRow);
  if (after_another) store_tile<0>(sums, kRow);
  clear_tile<0>();
  add_tile_product<0, 4, 6>();
  load_tile<7>(w + kLanes, kPanelRow);
  if (after_another) store_tile<1>(sums + kTileFloats, kRow);
  clear_tile<1>();
  add_tile_product<1, 4, 7>();
  if constexpr (tiles == 2) {
    load_tile<5>(x + next_rows, kRow);
    if (after_another) store_tile<2>(sums + 2 * kTileFloats, kRow);
    clear_tile<2>();
    add_tile_product<2, 5, 6>();
    if (after_another) store_tile<3>(sums + 3 * kTileFloats, kRow);
    clear_tile<3>();
    add_tile_product<3, 5, 7>();
  }
  load_tile<4>(x + kTileFloats, kRow);
  add_tile_product<0, 4, 6>();
  add_tile_product<1, 4, 7>();
  if constexpr (tiles == 2) {
    load_tile<5>(x + next_rows + kTileFloats, kRow);
    add_tile_product<2, 5, 6>();
    add_tile_product<3, 5, 7>();
  }
}

template <int tiles>
HWY_INLINE void finish_block(float* sums) {
  store_tile<0>(sums, 64);
  store_tile<1>(sums + kTileFloats, 64);
  if constexpr (tiles == 2) {
    store_tile<2>(sums + 2 * kTileFloats, 64);
    store_tile<3>(sums + 3 * kTileFloats, 64);
  }
}

// One or two tiles of rows by two of columns. The sums of two blocks are made at a time, so that
// they and what they are made of stay in the first cache level, and then scaled and added up:
// products of tiles leave the other units half their speed, so that doing both at once gains
// little.
template <bool minimum, int tiles>
HWY_NOINLINE void multiply_square(const DigitProblem& p,
                                  const float* x,
                                  int64_t row,
                                  int64_t rows,
                                  const float* panel,
                                  int64_t first,
                                  int64_t count) {
  constexpr int64_t kAtOnce = 2, kSome = 8;
  const int64_t blocks = p.x.k / 32, next_rows = rows_floats(p.x.k);
  const float *d = panel + blocks * 2 * kTileFloats, *m = d + blocks * kPanelColumns;
  HWY_ALIGN float sums[kAtOnce][4][kTileFloats];
  HWY_ALIGN float y[2 * tiles][kSome][2][kLanes];
  for (int64_t b = 0; b < blocks; b += kAtOnce) {
    const int64_t n = std::min(kAtOnce, blocks - b);
    const float *x_b = x + b * 2 * kTileFloats, *w_b = panel + b * 2 * kTileFloats;
    start_block<tiles, false>(x_b, next_rows, w_b, nullptr);
    if (n == 2)
      start_block<tiles, true>(x_b + 2 * kTileFloats, next_rows, w_b + 2 * kTileFloats, sums[0][0]);
    finish_block<tiles>(sums[n - 1][0]);
    // eight rows of all columns, whose sums 16 registers hold
#pragma GCC unroll 1
    for (int64_t q = 0; q < 2 * tiles; ++q) {
      const int64_t tile = q / 2, from = q % 2 * kSome;
      V32 out[kSome][2];
#pragma GCC unroll 8
      for (int i = 0; i < kSome; ++i)
#pragma GCC unroll 2
        for (int c = 0; c < 2; ++c) out[i][c] = b == 0 ? zero() : hn::Load(F32(), y[q][i][c]);
      const float* scales = x + tile * next_rows + blocks * 2 * kTileFloats + from;
#pragma GCC unroll 1
      for (int64_t r = 0; r < n; ++r) {
        const float *d_b = d + (b + r) * kPanelColumns, *m_b = m + (b + r) * kPanelColumns;
        const V32 ds[] = {load(d_b), load(d_b + kLanes)};
        const V32 ms[] = {minimum ? load(m_b) : zero(), minimum ? load(m_b + kLanes) : zero()};
        const float *s = scales + (b + r) * kScales, *totals = s + kTileRows;
        const float* of_block = sums[r][2 * tile] + from * kLanes;
#pragma GCC unroll 8
        for (int i = 0; i < kSome; ++i) {
          const V32 of_row = all(s[i]), total = minimum ? all(totals[i]) : zero();
#pragma GCC unroll 2
          for (int c = 0; c < 2; ++c) {
            const V32 sum = hn::Load(F32(), of_block + c * kTileFloats + i * kLanes);
            // as add_run() in digits.cpp
            out[i][c] = hn::MulAdd(sum, hn::Mul(ds[c], of_row), out[i][c]);
            if constexpr (minimum) out[i][c] = hn::MulAdd(ms[c], total, out[i][c]);
          }
        }
      }
      if (b + n < blocks) {
#pragma GCC unroll 8
        for (int i = 0; i < kSome; ++i)
#pragma GCC unroll 2
          for (int c = 0; c < 2; ++c) hn::Store(out[i][c], F32(), y[q][i][c]);
        continue;
      }
      const int64_t first_row = tile * kTileRows + from;
#pragma GCC unroll 2
      for (int64_t c = 0; c < 2; ++c) {
        const int64_t left = count - c * kLanes;
        if (left <= 0) break;
        const float* bias = p.bias ? p.bias + first + c * kLanes : nullptr;
        const V32 more = bias ? load_upto(bias, left) : zero();
        float* to = p.y + (row + first_row) * p.y_stride + first + c * kLanes;
#pragma GCC unroll 8
        for (int64_t i = 0; i < kSome; ++i)
          if (first_row + i < rows)
            store_upto(bias ? hn::Add(out[i][c], more) : out[i][c], to + i * p.y_stride, left);
      }
    }
  }
}

template <bool minimum>
void multiply(const DigitProblem& p,
              const float* x,
              int64_t row,
              int64_t rows,
              const float* panel,
              int64_t first,
              int64_t count) {
  rows > kTileRows ? multiply_square<minimum, 2>(p, x, row, rows, panel, first, count)
                   : multiply_square<minimum, 1>(p, x, row, rows, panel, first, count);
}

DigitTileKernels digit_tiles(DType type, int64_t k) {
  DigitTileKernels kernels{};
  with_codes(type, [&]<class Block>() HWY_ATTR {
    if constexpr (FitsTiles<Block>)
      kernels = {rows_floats(k), panel_floats(k), spread, pack<Block>, multiply<Block::minimum>};
  });
  return kernels;
}

#else

DigitTileKernels digit_tiles(DType, int64_t) {
  return {};
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(digit_tiles);

namespace {

// Fewer do not pay for packing codes as bfloat16.
constexpr int64_t kLeastRows = 64;
// rows of x that a thread multiplies at a time: their tiles stay in its second cache level
constexpr int64_t kBlock = 64;
// floats of w that all share, 16 MiB
constexpr int64_t kOfW = int64_t{1} << 22;

/// Calls body(first panel, last panel) for groups of panels, in turn, and gives what it needs of x.
class Panels {
 public:
  Panels(const DigitProblem& p, const DigitTileKernels& kernels) : p_(p), kernels_(kernels) {}

  int64_t count() const { return (p_.n + kPanelColumns - 1) / kPanelColumns; }
  void pack(int64_t panel, float* to) const {
    kernels_.pack(p_, panel * kPanelColumns, columns(panel), to);
  }
  void multiply(const float* x, int64_t row, int64_t rows, int64_t panel, const float* w) const {
    for (int64_t i = 0; i < rows; i += 2 * kTileRows)
      kernels_.multiply(p_, x + i / kTileRows * kernels_.rows_floats, row + i,
                        std::min(2 * kTileRows, rows - i), w, panel * kPanelColumns,
                        columns(panel));
  }
  float* spread(int64_t row, int64_t rows) const {
    const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    float* x = scratch<35>(tiles * kernels_.rows_floats);
    for (int64_t t = 0; t < tiles; ++t)
      kernels_.spread(p_, row + t * kTileRows, std::min(kTileRows, rows - t * kTileRows),
                      x + t * kernels_.rows_floats);
    return x;
  }

 private:
  int64_t columns(int64_t panel) const {
    return std::min(kPanelColumns, p_.n - panel * kPanelColumns);
  }
  const DigitProblem& p_;
  const DigitTileKernels& kernels_;
};

}  // namespace

bool tiles_pay(const DigitProblem& p) {
  return p.x.int15 && p.x.m >= kLeastRows && p.x.k > 0 && use_tiles() &&
         HWY_DYNAMIC_DISPATCH(digit_tiles)(p.type, p.x.k).multiply != nullptr;
}

void multiply_in_tiles(const DigitProblem& p) {
  const DigitTileKernels kernels = HWY_DYNAMIC_DISPATCH(digit_tiles)(p.type, p.x.k);
  const Panels panels(p, kernels);
  const int64_t m = p.x.m, w_floats = kernels.panel_floats;
  // what one block of rows needs of w is packed where it is used
  if (m <= kBlock) {
    parallel_for(panels.count(), 1, [&](int64_t begin, int64_t end) {
      const Tiles tiles;
      const float* x = panels.spread(0, m);
      float* w = scratch<36>(w_floats);
      for (int64_t panel = begin; panel < end; ++panel) {
        panels.pack(panel, w);
        panels.multiply(x, 0, m, panel, w);
      }
    });
    return;
  }
  const int64_t some = std::max<int64_t>(1, kOfW / w_floats), n_blocks = (m + kBlock - 1) / kBlock;
  float* w = scratch<37>(std::min(some, panels.count()) * w_floats);
  for (int64_t first = 0; first < panels.count(); first += some) {
    const int64_t n = std::min(some, panels.count() - first);
    parallel_for(n, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) panels.pack(first + i, w + i * w_floats);
    });
    // where there are few blocks of rows each is cut by columns as well
    constexpr int64_t kLeastPanels = 8;
    const int64_t wanted = (2 * thread_count() + n_blocks - 1) / n_blocks,
                  each = std::max((n + wanted - 1) / wanted, kLeastPanels),
                  n_groups = (n + each - 1) / each;
    parallel_in_turn(n_blocks * n_groups, 1, [&](int64_t begin, int64_t end) {
      const Tiles tiles;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t row = task / n_groups * kBlock, rows = std::min(kBlock, m - row),
                      group = task % n_groups * each;
        const float* x = panels.spread(row, rows);
        for (int64_t i = group; i < std::min(n, group + each); ++i)
          panels.multiply(x, row, rows, first + i, w + i * w_floats);
      }
    });
  }
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
