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
#include "tessera/kernels/targets.h"
#include "tessera/kernels/tiles.h"
#include "tessera/kernels/turn_rows_inl.h"

#ifndef TESSERA_KERNELS_GEMM_TYPES_
#define TESSERA_KERNELS_GEMM_TYPES_
namespace tessera::kernels {

/// Contents of one element of a panel: a float32, that of the nearest float16, or in its bits two
/// bfloat16 that follow each other along k, the first one in the lower half. Sums of pairs are
/// taken in float32, by units for them, or by tiles.
enum class Packing { number, half, pair, pair_for_units, pair_for_tiles };
constexpr int64_t numbers_of(Packing packing) {
  return packing == Packing::number || packing == Packing::half ? 1 : 2;
}
/// Places along k that `depth` numbers take: of tiles whole ones.
constexpr int64_t packed_numbers(Packing packing, int64_t depth) {
  const int64_t places = (depth + numbers_of(packing) - 1) / numbers_of(packing);
  return packing == Packing::pair_for_tiles ? (places + 15) / 16 * 16 : places;
}

/// The loops of one target and kind of places.
struct GemmKernels {
  int64_t columns, block_rows, depth;  // of a panel of b, of a block of a, of a piece of k
  void (*pack_panels)(const MatrixView& b,
                      int64_t n,
                      int64_t k0,
                      int64_t depth,
                      int64_t begin,
                      int64_t end,
                      float* to);
  void (*block)(const MatrixView& a,
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
                bool add);
};

}  // namespace tessera::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// A tile: 28 of 32 registers of AVX-512 hold its sums, 12 of 16 of the others. Rows of b's piece
// are packed for all threads and stay in the third cache level, a block of a in the second.
constexpr bool kWide = HWY_TARGET <= HWY_AVX3;
constexpr int kRows = kWide ? 14 : 6;
constexpr int kColumns = 2 * kLanes;
constexpr int64_t kBlockRows = 8 * kRows;
// places of a panel along k
constexpr int64_t kDepth = kWide ? 768 : 384;

using U64 = hn::Repartition<uint64_t, F32>;

/// The 16 upper bits nearest to each number, ties to even; those of a NaN stay one.
HWY_INLINE hn::Vec<U32> rounded(V32 x) {
  const auto bits = hn::BitCast(U32(), x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(U32(), 1));
  const auto nearest = hn::Add(bits, hn::Add(odd, hn::Set(U32(), 0x7FFF)));
  const auto quiet = hn::Or(bits, hn::Set(U32(), 0x00400000));
  return hn::IfThenElse(hn::RebindMask(U32(), hn::IsNaN(x)), quiet, nearest);
}
HWY_INLINE hn::Vec<U32> upper_half(hn::Vec<U32> x) {
  return hn::And(x, hn::Set(U32(), 0xFFFF0000));
}
HWY_INLINE V32 pairs(V32 first, V32 second) {
  return hn::BitCast(F32(),
                     hn::Or(hn::ShiftRight<16>(rounded(first)), upper_half(rounded(second))));
}
/// Of neighbours, two vectors of them.
HWY_INLINE V32 pairs_of_neighbours(V32 lower, V32 upper) {
  const auto even = [](V32 x) {
    const auto bits = hn::BitCast(U64(), rounded(x));
    const auto first = hn::ShiftRight<48>(hn::ShiftLeft<32>(bits));
    const auto second = hn::And(hn::ShiftRight<32>(bits), hn::Set(U64(), uint64_t{0xFFFF0000}));
    return hn::BitCast(F32(), hn::Or(first, second));
  };
  return hn::ConcatEven(F32(), even(upper), even(lower));
}

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
constexpr bool kHasUnits = true;
// The same by units; numbers below 2^-126 become zeros.
HWY_INLINE V32 unit_pairs_of_neighbours(V32 lower, V32 upper) {
  V32 out;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(out.raw) : "v"(upper.raw), "v"(lower.raw));
  return out;
}
HWY_INLINE V32 unit_pairs(V32 first, V32 second) {
  HWY_ALIGN static constexpr uint16_t kInTurn[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                     21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                     11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const V32 both = unit_pairs_of_neighbours(first, second);
  return V32{_mm512_castsi512_ps(
      _mm512_permutexvar_epi16(_mm512_load_si512(kInTurn), _mm512_castps_si512(both.raw)))};
}
#else
constexpr bool kHasUnits = false;
HWY_INLINE V32 unit_pairs_of_neighbours(V32 lower, V32) {
  return lower;
}
HWY_INLINE V32 unit_pairs(V32 first, V32) {
  return first;
}
#endif

// count vectors across, of which each is `along` apart, as columns of [depth][width]; what is
// missing of the width is zeros. across: from one to the next of the panel.
void pack_numbers(const float* from,
                  int64_t across,
                  int64_t along,
                  int64_t count,
                  int64_t width,
                  int64_t depth,
                  float* to) {
  if (across == 1) {
    if (count < width) std::memset(to, 0, static_cast<size_t>(width * depth) * sizeof(float));
    for (int64_t p = 0; p < depth; ++p)
      std::memcpy(to + p * width, from + p * along, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  // a few of k at a time: lines that are read and written stay in the first cache level
  constexpr int64_t kStep = 16;
  for (int64_t p = 0; p < depth; p += kStep)
    turn_rows(from + p, across, count, std::min(kStep, depth - p), to + p * width, width, width);
}

// The same of pairs, [(depth + 1) / 2][width]; the last of an odd depth has a zero as its partner.
template <bool by_units>
void pack_pairs(const float* from,
                int64_t across,
                int64_t along,
                int64_t count,
                int64_t width,
                int64_t depth,
                float* to) {
  if (across == 1) {
    if (count < width)
      std::memset(to, 0, static_cast<size_t>(width * ((depth + 1) / 2)) * sizeof(float));
    for (int64_t p = 0; p < depth; p += 2, to += width)
      for (int64_t c = 0; c < count; c += kLanes) {
        const float* first = from + p * along + c;
        const V32 even = load_upto(first, count - c),
                  odd = p + 1 < depth ? load_upto(first + along, count - c) : zero();
        store_upto(by_units ? unit_pairs(even, odd) : pairs(even, odd), to + c, count - c);
      }
    return;
  }
  constexpr int64_t kStep = 16;  // pairs
  HWY_ALIGN float rows[kColumns * kStep];
  for (int64_t p = 0; p < depth; p += 2 * kStep) {
    const int64_t n = std::min(2 * kStep, depth - p);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t q = 0; q < n; q += 2 * kLanes) {
        const float* row = from + i * across + p + q;
        const V32 lower = load_upto(row, n - q),
                  upper = n - q > kLanes ? load_upto(row + kLanes, n - q - kLanes) : zero();
        hn::Store(
            by_units ? unit_pairs_of_neighbours(lower, upper) : pairs_of_neighbours(lower, upper),
            F32(), rows + i * kStep + q / 2);
      }
    turn_rows(rows, kStep, count, (n + 1) / 2, to + p / 2 * width, width, width);
  }
}

/// The nearest float16, ties to even; a NaN stays one. Highway's own conversion cuts off on some
/// targets.
HWY_INLINE V32 nearest_half(V32 x) {
  const V32 size = hn::Abs(x);
  // 10 bits after the first; what is then above the largest is infinite
  const auto bits = hn::BitCast(U32(), size);
  const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(U32(), 1));
  const V32 normal = hn::BitCast(F32(), hn::And(hn::Add(bits, hn::Add(odd, hn::Set(U32(), 0xFFF))),
                                                hn::Set(U32(), 0xFFFFE000)));
  const V32 bounded = hn::IfThenElse(hn::Gt(normal, all(65504)), hn::Inf(F32()), normal);
  // below 2^-14 multiples of 2^-24, which are the last bits of numbers from 0.5 to 1
  const V32 small = hn::Sub(hn::Add(size, all(0.5F)), all(0.5F));
  const V32 rounded = hn::IfThenElse(hn::Lt(size, all(0x1p-14F)), small, bounded);
  return hn::IfThenElse(hn::IsNaN(x), x, hn::CopySign(rounded, x));
}

void round_to_halves(float* numbers, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes)
    store_upto(nearest_half(load_upto(numbers + i, n - i)), numbers + i, n - i);
}

template <Packing kPacking>
void pack(const float* from,
          int64_t across,
          int64_t along,
          int64_t count,
          int64_t width,
          int64_t depth,
          float* to) {
  if constexpr (kPacking == Packing::number || kPacking == Packing::half)
    pack_numbers(from, across, along, count, width, depth, to);
  if constexpr (kPacking == Packing::half) round_to_halves(to, width * depth);
  if constexpr (numbers_of(kPacking) == 2)
    pack_pairs<kHasUnits && kPacking != Packing::pair>(from, across, along, count, width, depth,
                                                       to);
  if constexpr (kPacking == Packing::pair_for_tiles) {
    const int64_t have = (depth + 1) / 2 * width, whole = packed_numbers(kPacking, depth) * width;
    std::memset(to + have, 0, static_cast<size_t>(whole - have) * sizeof(float));
  }
}

/// sum + x y, of what places hold.
template <Packing kPacking>
HWY_INLINE V32 add_product(V32 sum, V32 x, V32 y) {
  if constexpr (kPacking == Packing::number || kPacking == Packing::half)
    return hn::MulAdd(x, y, sum);
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  if constexpr (kPacking == Packing::pair_for_units) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(x.raw), "v"(y.raw));
    return sum;
  }
#endif
  if constexpr (kPacking == Packing::pair) {
    const auto first = [](V32 v) {
      return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::BitCast(U32(), v)));
    };
    const auto second = [](V32 v) { return hn::BitCast(F32(), upper_half(hn::BitCast(U32(), v))); };
    return hn::MulAdd(second(x), second(y), hn::MulAdd(first(x), first(y), sum));
  }
}

// out (+)= a panel of a times a panel of b, `places` deep
template <Packing kPacking>
HWY_INLINE void tile(const float* HWY_RESTRICT a,
                     const float* HWY_RESTRICT b,
                     int64_t places,
                     float* HWY_RESTRICT out,
                     int64_t stride,
                     int64_t rows,
                     int64_t columns,
                     bool add) {
  V32 sums[kRows][2];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = zero();
  for (int64_t p = 0; p < places; ++p) {
    const V32 b0 = hn::Load(F32(), b), b1 = hn::Load(F32(), b + kLanes);
    __builtin_prefetch(b + 16 * kColumns);
    if constexpr (kWide) __builtin_prefetch(b + 16 * kColumns + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const V32 x = all(a[r]);
      sums[r][0] = add_product<kPacking>(sums[r][0], x, b0);
      sums[r][1] = add_product<kPacking>(sums[r][1], x, b1);
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

template <Packing kPacking>
void pack_panels(const MatrixView& b,
                 int64_t n,
                 int64_t k0,
                 int64_t depth,
                 int64_t begin,
                 int64_t end,
                 float* to) {
  const int64_t places = packed_numbers(kPacking, depth);
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t j = panel * kColumns;
    pack<kPacking>(b.data + k0 * b.row + j * b.column, b.column, b.row,
                   std::min<int64_t>(kColumns, n - j), kColumns, depth, to + j * places);
  }
}

// rows [row, row + rows) of the output, of some panels of columns
template <Packing kPacking>
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
  const int64_t places = packed_numbers(kPacking, depth);
  float* packed = scratch<33>(kBlockRows * kDepth + 16 * kColumns);
  for (int64_t i = 0; i < rows; i += kRows)
    pack<kPacking>(a.data + (row + i) * a.row + k0 * a.column, a.row, a.column,
                   std::min<int64_t>(kRows, rows - i), kRows, depth, packed + i * places);
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    const int64_t j = panel * kColumns;
    for (int64_t i = 0; i < rows; i += kRows)
      tile<kPacking>(packed + i * places, panels + j * places, places,
                     out + (row + i) * out_stride + j, out_stride,
                     std::min<int64_t>(kRows, rows - i), std::min<int64_t>(kColumns, n - j), add);
  }
}

template <Packing kPacking>
GemmKernels kernels_of() {
  return {kColumns, kBlockRows, kDepth * numbers_of(kPacking), pack_panels<kPacking>,
          block<kPacking>};
}

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86

// --- tiles ---------------------------------------------------------------------------------------

constexpr int64_t kTileRows = 16, kTileFloats = 256;  // of 16 pairs a row
constexpr int64_t kTileBlockRows = 128, kTileDepth = 1024;

// Up to 16 rows, [depth / 32] tiles.
void pack_tiles(
    const float* from, int64_t across, int64_t along, int64_t count, int64_t depth, float* to) {
  if (count < kTileRows)
    std::memset(to, 0,
                static_cast<size_t>(packed_numbers(Packing::pair_for_tiles, depth) * kTileRows) *
                    sizeof(float));
  HWY_ALIGN float turned[kTileFloats];
  for (int64_t p = 0; p < depth; p += 32, to += kTileFloats) {
    const int64_t left = depth - p;
    if (along == 1) {
      for (int64_t i = 0; i < count; ++i) {
        const float* row = from + i * across + p;
        hn::Store(unit_pairs_of_neighbours(
                      load_upto(row, left),
                      left > kLanes ? load_upto(row + kLanes, left - kLanes) : zero()),
                  F32(), to + i * kLanes);
      }
      continue;
    }
    for (int64_t q = 0; q < kLanes; ++q) {
      const float* rows = from + (p + 2 * q) * along;
      const V32 even = 2 * q < left ? load_upto(rows, count) : zero(),
                odd = 2 * q + 1 < left ? load_upto(rows + along, count) : zero();
      hn::Store(unit_pairs(even, odd), F32(), turned + q * kLanes);
    }
    for (int64_t q = 0; q < kLanes; q += 4)
      transpose_four_rows(turned + q * kLanes, kLanes, count, to + q, kLanes);
  }
}

// sums[2 tiles][2] = tiles of rows times two of columns
template <int tiles>
HWY_INLINE void add_tiles(
    const float* a, int64_t next_rows, const float* b, int64_t steps, float* sums) {
  constexpr int64_t kRow = 64, kPanelRow = kColumns * sizeof(float);
  clear_tile<0>();
  clear_tile<1>();
  if constexpr (tiles == 2) {
    clear_tile<2>();
    clear_tile<3>();
  }
  for (int64_t s = 0; s < steps; ++s, a += kTileFloats, b += kTileRows * kColumns) {
    load_tile<4>(a, kRow);
    load_tile<6>(b, kPanelRow);
    add_tile_product<0, 4, 6>();
    load_tile<7>(b + kLanes, kPanelRow);
    add_tile_product<1, 4, 7>();
    if constexpr (tiles == 2) {
      load_tile<5>(a + next_rows, kRow);
      add_tile_product<2, 5, 6>();
      add_tile_product<3, 5, 7>();
    }
  }
  store_tile<0>(sums, kPanelRow);
  store_tile<1>(sums + kLanes, kPanelRow);
  if constexpr (tiles == 2) {
    store_tile<2>(sums + kTileRows * kColumns, kPanelRow);
    store_tile<3>(sums + kTileRows * kColumns + kLanes, kPanelRow);
  }
}

void block_in_tiles(const MatrixView& a,
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
  const int64_t places = packed_numbers(Packing::pair_for_tiles, depth), steps = places / kLanes;
  float* packed = scratch<33>(kTileBlockRows * kTileDepth / 2);
  for (int64_t i = 0; i < rows; i += kTileRows)
    pack_tiles(a.data + (row + i) * a.row + k0 * a.column, a.row, a.column,
               std::min(kTileRows, rows - i), depth, packed + i * places);
  const Tiles tiles;
  HWY_ALIGN float sums[2 * kTileRows * kColumns];
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    const int64_t j = panel * kColumns, columns = std::min<int64_t>(kColumns, n - j);
    for (int64_t i = 0; i < rows; i += 2 * kTileRows) {
      const float *from = packed + i * places, *b = panels + j * places;
      if (rows - i > kTileRows)
        add_tiles<2>(from, kTileRows * places, b, steps, sums);
      else
        add_tiles<1>(from, 0, b, steps, sums);
      for (int64_t r = 0; r < std::min(2 * kTileRows, rows - i); ++r)
        for (int64_t c = 0; c < columns; c += kLanes) {
          float* to = out + (row + i + r) * out_stride + j + c;
          const V32 sum = hn::Load(F32(), sums + r * kColumns + c);
          store_upto(add ? hn::Add(load_upto(to, columns - c), sum) : sum, to, columns - c);
        }
    }
  }
}

template <>
GemmKernels kernels_of<Packing::pair_for_tiles>() {
  return {kColumns, kTileBlockRows, kTileDepth, pack_panels<Packing::pair_for_tiles>,
          block_in_tiles};
}

#endif

GemmKernels gemm_kernels(Packing packing) {
  switch (packing) {
    case Packing::number:
      return kernels_of<Packing::number>();
    case Packing::half:
      return kernels_of<Packing::half>();
    case Packing::pair_for_units:
      if constexpr (kHasUnits) return kernels_of<Packing::pair_for_units>();
      break;
    case Packing::pair_for_tiles:
      if constexpr (kHasUnits) return kernels_of<Packing::pair_for_tiles>();
      break;
    case Packing::pair:
      break;
  }
  return kernels_of<Packing::pair>();
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(gemm_kernels);

namespace {

Packing packing_of(ProductType type) {
  switch (type) {
    case ProductType::bf16:
      return use_tiles()                  ? Packing::pair_for_tiles
             : cpu_info().has_avx512_bf16 ? Packing::pair_for_units
                                          : Packing::pair;
    case ProductType::fp16:
      return Packing::half;
    case ProductType::float32:
      break;
  }
  return Packing::number;
}

// numbers of b's piece that are packed at once, 16 MiB: what is wider is done by some columns after
// the other
constexpr int64_t kPacked = int64_t{1} << 22;

void multiply(Packing packing,
              const MatrixView& a,
              const MatrixView& b,
              int64_t m,
              int64_t n,
              int64_t k,
              float* out,
              int64_t out_stride,
              bool add,
              const float* bias) {
  require(m >= 0 && n >= 0 && k >= 0 && (m <= 1 || out_stride >= n), "gemm",
          "m = {}, n = {}, k = {}, stride {}", m, n, k, out_stride);
  require(
      (a.row == 1 || a.column == 1 || m * k <= 1) && (b.row == 1 || b.column == 1 || k * n <= 1),
      "gemm", "strides {}, {} and {}, {}; expected one of each to be 1", a.row, a.column, b.row,
      b.column);
  require(bias == nullptr || !add, "gemm", "a bias, and an output that is added to");
  if (m == 0 || n == 0) return;
  const auto begin_with_bias = [&](int64_t row, int64_t rows, int64_t first, int64_t last) {
    for (int64_t i = row; i < row + rows; ++i)
      std::copy(bias + first, bias + last, out + i * out_stride + first);
  };
  if (k == 0) {
    if (bias != nullptr)
      begin_with_bias(0, m, 0, n);
    else
      for (int64_t i = 0; i < m && !add; ++i) std::fill_n(out + i * out_stride, n, 0.0F);
    return;
  }
  cap_targets();
  const GemmKernels kernels = HWY_DYNAMIC_DISPATCH(gemm_kernels)(packing);
  const int64_t columns = kernels.columns, rows = kernels.block_rows;
  const int64_t places = packed_numbers(packing, std::min(k, kernels.depth));
  const int64_t widest = std::max<int64_t>(1, kPacked / (columns * places)) * columns;
  if (n > widest) {
    for (int64_t j = 0; j < n; j += widest)
      multiply(packing, a, {b.data + j * b.column, b.row, b.column}, m, std::min(widest, n - j), k,
               out + j, out_stride, add, bias == nullptr ? nullptr : bias + j);
    return;
  }
  const int64_t n_panels = (n + columns - 1) / columns, n_blocks = (m + rows - 1) / rows;
  // where there are few blocks of rows each is cut by columns as well, and packed again for each
  // cut
  constexpr int64_t kTasks = 4, kLeastPanels = 8;  // of a thread; of a cut
  const int64_t wanted = std::max<int64_t>(1, kTasks * thread_count() / n_blocks),
                each = std::max((n_panels + wanted - 1) / wanted, kLeastPanels),
                n_groups = (n_panels + each - 1) / each;
  // the last panel is read ahead of
  float* panels = scratch<34>(n_panels * columns * places + 16 * columns);
  for (int64_t k0 = 0; k0 < k; k0 += kernels.depth) {
    const int64_t depth = std::min(kernels.depth, k - k0);
    parallel_for(n_panels, 4, [&](int64_t begin, int64_t end) {
      kernels.pack_panels(b, n, k0, depth, begin, end, panels);
    });
    parallel_in_turn(n_blocks * n_groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t row = task / n_groups * rows, group = task % n_groups;
        const int64_t some = std::min(rows, m - row), first = group * each,
                      last = std::min(n_panels, first + each);
        const bool from_bias = bias != nullptr && k0 == 0;
        if (from_bias) begin_with_bias(row, some, first * columns, std::min(n, last * columns));
        kernels.block(a, row, some, n, k0, depth, panels, first, last, out, out_stride,
                      add || from_bias || k0 > 0);
      }
    });
  }
}

}  // namespace

void gemm(ProductType type,
          const MatrixView& a,
          const MatrixView& b,
          int64_t m,
          int64_t n,
          int64_t k,
          float* out,
          int64_t out_stride,
          bool add,
          const float* bias) {
  multiply(packing_of(type), a, b, m, n, k, out, out_stride, add, bias);
}

bool has_bf16_units() {
  return cpu_info().has_bf16_units && cpu_info().allowed >= CpuTarget::avx512;
}

bool gemm_pays(int64_t m, int64_t n, int64_t k) {
  static const bool here =
      cpu_info().allowed >= CpuTarget::avx512 && cpu_info().model.find("AMD") != std::string::npos;
  return here && std::min({m, n, k}) >= 128 && m * n * k >= int64_t{1} << 28;
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
