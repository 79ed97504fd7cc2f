#include "tessera/kernels/weights/bf16_rows.h"

// processors with these units have AVX3_DL as well; the portable target, always compiled,
// multiplies in float32
#define HWY_WANT_AVX3_DL
#include <hwy/detect_targets.h>
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/kernels/weights/bf16_rows.cpp"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "tessera/base/cpu.h"
#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/scratch.h"
#include "tessera/kernels/targets.h"
#include "tessera/kernels/tiles.h"
#include "tessera/kernels/turn_rows_inl.h"
#include "tessera/kernels/weights/digits_inl.h"
#include "tessera/kernels/weights/matmul.h"

#ifndef TESSERA_KERNELS_BF16_ROWS_ONCE
#define TESSERA_KERNELS_BF16_ROWS_ONCE
namespace tessera::kernels {

/// y = x w^T, as digit_matmul() has it.
struct Bf16Problem {
  const RoundedRows& x;
  const uint8_t* w;
  int64_t n, row_bytes;
  const float* bias;
  float* y;
  int64_t y_stride;
};

/// The loops of one target; null where it has no units.
struct Bf16Kernels {
  void (*round)(const RoundedRows& r, int64_t begin, int64_t end);
  void (*columns)(const Bf16Problem& p, int64_t begin, int64_t end);
  void (*tiles)(const Bf16Problem& p, int64_t begin, int64_t end);  // the same, on AMX
};

}  // namespace tessera::kernels
#endif  // TESSERA_KERNELS_BF16_ROWS_ONCE

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL

// Numbers along k in a block: of x 64 bytes for each part, pairs in 16 words.
constexpr int kBlock = 32, kBlockBytes = 2 * kBlock, kWords = 16;
// Blocks in a piece of k, whose parts of a strip of rows stay in the first cache level. Words of a
// block are four quarters: a piece is the sum of those of the first quarters, the second ones, and
// so on, as they lie in the quarters of a vector.
constexpr int64_t piece_blocks(int parts) {
  return 32 / parts;
}

// --- rounding ------------------------------------------------------------------------------------

// 32 bfloat16
HWY_INLINE V32 in_bf16(V32 lower, V32 upper) {
  V32 out;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(out.raw) : "v"(upper.raw), "v"(lower.raw));
  return out;
}

// what 16 of them leave of x; nothing where they are not finite
HWY_INLINE V32 rest_of(V32 x, const uint16_t* parts) {
  const hn::Rebind<uint16_t, F32> half;
  const V32 first =
      hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(half, parts))));
  return hn::IfThenElseZero(hn::IsFinite(first), hn::Sub(x, first));
}

template <int parts>
HWY_INLINE void round_parts(const RoundedRows& r, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const float* x = r.x + i * r.x_stride;
    auto* to = reinterpret_cast<float*>(r.codes + i * r.row_codes);
    for (int64_t c = 0; c < r.k; c += kBlock, to += parts * kWords) {
      const V32 lower = load(x + c), upper = load(x + c + kLanes);
      store(in_bf16(lower, upper), to);
      if constexpr (parts == 2) {
        const auto* first = reinterpret_cast<const uint16_t*>(to);
        store(in_bf16(rest_of(lower, first), rest_of(upper, first + kLanes)), to + kWords);
      }
    }
  }
}

void bf16_round(const RoundedRows& r, int64_t begin, int64_t end) {
  r.parts == 2 ? round_parts<2>(r, begin, end) : round_parts<1>(r, begin, end);
}

// --- transposition -------------------------------------------------------------------------------

// Words c, 4 + c, 8 + c and 12 + c of 64 bytes of four rows in the quarters of out[c], row r's in
// lane r of a quarter.
HWY_INLINE void quarters_of(const uint8_t* w, int64_t stride, VI (&out)[4]) {
  const I32 d;
  const hn::Repartition<int64_t, I32> d64;
  const auto row = [&](int i) HWY_ATTR {
    return hn::LoadU(d, reinterpret_cast<const int32_t*>(w + i * stride));
  };
  const VI a = row(0), b = row(1), c = row(2), e = row(3);
  const auto pairs = [&](VI v) HWY_ATTR { return hn::BitCast(d64, v); };
  const auto ab = pairs(hn::InterleaveLower(d, a, b)), ab2 = pairs(hn::InterleaveUpper(d, a, b)),
             ce = pairs(hn::InterleaveLower(d, c, e)), ce2 = pairs(hn::InterleaveUpper(d, c, e));
  out[0] = hn::BitCast(d, hn::InterleaveLower(d64, ab, ce));
  out[1] = hn::BitCast(d, hn::InterleaveUpper(d64, ab, ce));
  out[2] = hn::BitCast(d, hn::InterleaveLower(d64, ab2, ce2));
  out[3] = hn::BitCast(d, hn::InterleaveUpper(d64, ab2, ce2));
}

// Quarter l of each of four in out[l].
HWY_INLINE void turn_quarters(VI a, VI b, VI c, VI e, VI (&out)[4]) {
  // quarters 0 and 2, or 1 and 3, of both
  const auto even = [](VI x, VI y)
                        HWY_ATTR { return VI{_mm512_shuffle_i32x4(x.raw, y.raw, 0x88)}; };
  const auto odd = [](VI x, VI y) HWY_ATTR { return VI{_mm512_shuffle_i32x4(x.raw, y.raw, 0xdd)}; };
  const VI ab = even(a, b), ab2 = odd(a, b), ce = even(c, e), ce2 = odd(c, e);
  out[0] = even(ab, ce);
  out[1] = even(ab2, ce2);
  out[2] = odd(ab, ce);
  out[3] = odd(ab2, ce2);
}

// Word u of 64 bytes of sixteen rows in out[u], row r's in lane r.
HWY_INLINE void turned(const uint8_t* w, int64_t stride, VI (&out)[kWords]) {
  VI rows[4][4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) quarters_of(w + 4 * j * stride, stride, rows[j]);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    VI words[4];
    turn_quarters(rows[0][c], rows[1][c], rows[2][c], rows[3][c], words);
#pragma GCC unroll 4
    for (int l = 0; l < 4; ++l) out[4 * l + c] = words[l];
  }
}

// --- few rows, two at a time: a quarter of a vector has words of four columns --------------------

// From more rows on a panel is worth its packing.
constexpr int64_t kFewRows = 8;

HWY_INLINE V32 add_pairs(V32 sum, V32 w, V32 x) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(w.raw), "v"(x.raw));
  return sum;
}

// word c of each quarter, in all of it
template <int c>
HWY_INLINE V32 in_quarters(V32 x) {
  return V32{_mm512_permute_ps(x.raw, 0x55 * c)};
}

// total (+)= the quarters of the sums of sixteen columns, in order
HWY_INLINE V32 add_quarters(V32 total, bool add, const V32 (&sum)[4]) {
  const auto bits = [&](int j) HWY_ATTR { return hn::BitCast(I32(), sum[j]); };
  VI quarters[4];
  turn_quarters(bits(0), bits(1), bits(2), bits(3), quarters);
  const auto quarter = [&](int l) HWY_ATTR { return hn::BitCast(F32(), quarters[l]); };
  total = add ? hn::Add(total, quarter(0)) : quarter(0);
#pragma GCC unroll 3
  for (int l = 1; l < 4; ++l) total = hn::Add(total, quarter(l));
  return total;
}

// y[row ... row + rows][first ... first + kLanes]
template <int parts, int rows>
HWY_INLINE void multiply_lanes(const Bf16Problem& p, int64_t row, int64_t first, bool ask) {
  constexpr int64_t kPiece = piece_blocks(parts);
  const int64_t blocks = p.x.k / kBlock;
  const int64_t x_row = p.x.row_codes / static_cast<int64_t>(sizeof(float));
  const auto* x = reinterpret_cast<const float*>(p.x.codes) + row * x_row;
  const uint8_t* w = p.w + first * p.row_bytes;
  // the next columns are asked for, block by block, as these are multiplied (digits.cpp)
  const uint8_t* ahead = w + kLanes * p.row_bytes;
  V32 sum[rows][4], total[rows];
  const auto add_piece = [&](bool add) HWY_ATTR __attribute__((always_inline)) {
#pragma GCC unroll 2
    for (int i = 0; i < rows; ++i) {
      total[i] = add_quarters(total[i], add, sum[i]);
      sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = zero();
    }
  };
  // some blocks of four columns after another: rows of w of a power of two of bytes meet in few
  // cache sets, and lines that two of their blocks share are read once
  const auto add_blocks = [&](auto count) HWY_ATTR __attribute__((always_inline)) {
    constexpr int kCount = decltype(count)::value, kAsk = kCount * kLanes * kBlockBytes;
    if (ask) ask_for<kAsk>(ahead);
    ahead += kAsk;
    V32 xs[rows][kCount][4][parts];
#pragma GCC unroll 2
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
      for (int b = 0; b < kCount; ++b)
#pragma GCC unroll 2
        for (int part = 0; part < parts; ++part) {
          const V32 words = load(x + i * x_row + (b * parts + part) * kWords);
          xs[i][b][0][part] = in_quarters<0>(words);
          xs[i][b][1][part] = in_quarters<1>(words);
          xs[i][b][2][part] = in_quarters<2>(words);
          xs[i][b][3][part] = in_quarters<3>(words);
        }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
#pragma GCC unroll 2
      for (int b = 0; b < kCount; ++b) {
        VI words[4];
        quarters_of(w + 4 * j * p.row_bytes + b * kBlockBytes, p.row_bytes, words);
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c)
#pragma GCC unroll 2
          for (int part = 0; part < parts; ++part)
#pragma GCC unroll 2
            for (int i = 0; i < rows; ++i)
              sum[i][j] = add_pairs(sum[i][j], hn::BitCast(F32(), words[c]), xs[i][b][c][part]);
      }
    x += kCount * parts * kWords;
    w += kCount * kBlockBytes;
  };
#pragma GCC unroll 2
  for (int i = 0; i < rows; ++i) total[i] = sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = zero();
  for (int64_t b = 0; b < blocks; b += 2) {
    if (b % kPiece == 0 && b > 0) add_piece(b > kPiece);
    if (b + 2 <= blocks)
      add_blocks(std::integral_constant<int, 2>());
    else
      add_blocks(std::integral_constant<int, 1>());
  }
  add_piece(blocks > kPiece);
#pragma GCC unroll 2
  for (int i = 0; i < rows; ++i)
    store(p.bias ? hn::Add(total[i], load(p.bias + first)) : total[i],
          p.y + (row + i) * p.y_stride + first);
}

template <int parts>
HWY_NOINLINE void multiply_few(const Bf16Problem& p, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; j += kLanes) {
    // the last ones overlap with those before
    const int64_t first = std::min(j, end - kLanes);
    int64_t i = 0;
    for (; i + 2 <= p.x.m; i += 2)
      multiply_lanes<parts, 2>(p, i, first, i == 0 && j + kLanes < end);
    if (i < p.x.m) multiply_lanes<parts, 1>(p, i, first, i == 0 && j + kLanes < end);
  }
}

// --- more rows: panels of columns, packed once ---------------------------------------------------

constexpr int64_t kPanelColumns = 2 * kLanes;
// Panels of a piece of k that all rows meet, and rows whose piece stays in the second cache level
// meanwhile.
constexpr int64_t kPanels = 8, kRows = 48;
constexpr int kStrip = 12;

// blocks along k; whether their products are added to those before; the last ones with the bias
struct Bf16Piece {
  int64_t block, blocks;
  bool add, last;
};

// to[quarter][block][4 words][column], of up to 32 columns
HWY_NOINLINE void pack(
    const Bf16Problem& p, const Bf16Piece& piece, int64_t first, int64_t count, float* to) {
  const uint8_t* w = p.w + first * p.row_bytes + piece.block * kBlockBytes;
  const bool whole = count == kPanelColumns;
  const int64_t next = first + 2 * kPanelColumns <= p.n ? kPanelColumns * p.row_bytes : 0;
  HWY_ALIGN uint8_t rest[kPanelColumns * kBlockBytes] = {};
  for (int64_t b = 0; b < piece.blocks; ++b, w += kBlockBytes) {
    if (!whole)
      for (int64_t j = 0; j < count; ++j)
        std::memcpy(rest + j * kBlockBytes, w + j * p.row_bytes, kBlockBytes);
    const uint8_t* from = whole ? w : rest;
    const int64_t stride = whole ? p.row_bytes : kBlockBytes;
#pragma GCC unroll 2
    for (int64_t v = 0; v < 2; ++v) {
      if (whole)
        for (int64_t j = 0; j < kLanes; ++j) prefetch(w + next + (v * kLanes + j) * p.row_bytes);
      VI words[kWords];
      turned(from + v * kLanes * stride, stride, words);
#pragma GCC unroll 16
      for (int u = 0; u < kWords; ++u)
        hn::Store(hn::BitCast(F32(), words[u]), F32(),
                  to + ((u / 4 * piece.blocks + b) * 4 + u % 4) * kPanelColumns + v * kLanes);
    }
  }
}

// y[row ... row + rows][first ... first + count]
template <int parts, int rows>
HWY_NOINLINE void multiply_strip(const Bf16Problem& p,
                                 const Bf16Piece& piece,
                                 const float* panel,
                                 int64_t row,
                                 int64_t first,
                                 int64_t count) {
  const int64_t x_row = p.x.row_codes / static_cast<int64_t>(sizeof(float));
  const auto* x_piece =
      reinterpret_cast<const float*>(p.x.codes) + row * x_row + piece.block * parts * kWords;
#pragma GCC unroll 1
  for (int quarter = 0; quarter < 4; ++quarter) {
    const float* x = x_piece + 4 * quarter;
    V32 sum[rows][2];
#pragma GCC unroll 12
    for (int i = 0; i < rows; ++i) sum[i][0] = sum[i][1] = zero();
    for (int64_t b = 0; b < piece.blocks; ++b, x += parts * kWords)
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c, panel += kPanelColumns) {
        const V32 w0 = hn::Load(F32(), panel), w1 = hn::Load(F32(), panel + kLanes);
        __builtin_prefetch(panel + 16 * kPanelColumns);
        __builtin_prefetch(panel + 16 * kPanelColumns + kLanes);
#pragma GCC unroll 2
        for (int part = 0; part < parts; ++part)
#pragma GCC unroll 12
          for (int i = 0; i < rows; ++i) {
            const V32 pair = all(x[i * x_row + part * kWords + c]);
            sum[i][0] = add_pairs(sum[i][0], w0, pair);
            sum[i][1] = add_pairs(sum[i][1], w1, pair);
          }
      }
    const bool add = piece.add || quarter > 0, last = piece.last && quarter == 3;
#pragma GCC unroll 12
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
      for (int64_t v = 0; v < 2; ++v) {
        const int64_t at = v * kLanes, left = count - at;
        if (left <= 0) break;
        float* y = p.y + (row + i) * p.y_stride + first + at;
        V32 out = add ? hn::Add(load_upto(y, left), sum[i][v]) : sum[i][v];
        if (last && p.bias) out = hn::Add(out, load_upto(p.bias + first + at, left));
        store_upto(out, y, left);
      }
  }
}

// the same of `rows` rows or, in the end, fewer
template <int parts, int rows>
HWY_INLINE void multiply_strips(const Bf16Problem& p,
                                const Bf16Piece& piece,
                                const float* panel,
                                int64_t row,
                                int64_t end,
                                int64_t first,
                                int64_t count) {
  for (; row + rows <= end; row += rows)
    multiply_strip<parts, rows>(p, piece, panel, row, first, count);
  if constexpr (rows > 1)
    if (row < end) multiply_strips<parts, rows - 1>(p, piece, panel, row, end, first, count);
}

template <int parts>
HWY_INLINE void multiply_many(const Bf16Problem& p, int64_t begin, int64_t end) {
  constexpr int64_t kPiece = piece_blocks(parts);
  const int64_t blocks = p.x.k / kBlock;
  // what a strip asks for ahead lies within
  float* panels = scratch<38>((kPanels * kPiece * kWords + 17) * kPanelColumns);
  for (int64_t first = begin; first < end; first += kPanels * kPanelColumns) {
    const int64_t stop = std::min(end, first + kPanels * kPanelColumns);
    for (int64_t b = 0; b < blocks; b += kPiece) {
      const Bf16Piece piece{b, std::min(kPiece, blocks - b), b > 0, b + kPiece >= blocks};
      const int64_t floats = piece.blocks * kWords * kPanelColumns;
      const auto each_panel = [&](const auto& use) HWY_ATTR {
        float* panel = panels;
        for (int64_t j = first; j < stop; j += kPanelColumns, panel += floats)
          use(j, std::min(kPanelColumns, stop - j), panel);
      };
      each_panel([&](int64_t j, int64_t count, float* panel)
                     HWY_ATTR { pack(p, piece, j, count, panel); });
      for (int64_t row = 0; row < p.x.m; row += kRows)
        each_panel([&](int64_t j, int64_t count, const float* panel) HWY_ATTR {
          multiply_strips<parts, kStrip>(p, piece, panel, row, std::min(p.x.m, row + kRows), j,
                                         count);
        });
    }
  }
}

// --- AMX: w lies as a tile reads it, x is turned -------------------------------------------------

constexpr int64_t kTileRows = 16, kTileFloats = 256;
// rows of x whose tiles stay in the second cache level
constexpr int64_t kTiledRows = 128;

int64_t tile_floats(int64_t k, int parts) {
  return k / kBlock * parts * kTileFloats;
}

// to[block][part] = a tile of pairs along k of up to 16 rows of x
void spread(const Bf16Problem& p, int64_t row, int64_t rows, float* to) {
  const uint8_t* x = p.x.codes + row * p.x.row_codes;
  const int64_t tiles = p.x.k / kBlock * p.x.parts;
  if (rows < kTileRows)
    std::memset(to, 0, static_cast<size_t>(tiles * kTileFloats) * sizeof(float));
  for (int64_t t = 0; t < tiles; ++t, x += kBlockBytes, to += kTileFloats) {
    if (rows < kTileRows) {
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t u = 0; u < kWords; ++u)
          std::memcpy(to + u * kLanes + i, x + i * p.x.row_codes + 4 * u, 4);
      continue;
    }
    VI words[kWords];
    turned(x, p.x.row_codes, words);
#pragma GCC unroll 16
    for (int u = 0; u < kWords; ++u)
      hn::Store(hn::BitCast(F32(), words[u]), F32(), to + u * kLanes);
  }
}

// y[row ... row + rows][first ... first + count] of one or two tiles of rows of x and 32 rows of w
template <int parts, int tiles>
HWY_NOINLINE void multiply_square(const Bf16Problem& p,
                                  const uint8_t* w,
                                  const uint8_t* ahead,
                                  const float* x,
                                  int64_t row,
                                  int64_t rows,
                                  int64_t first,
                                  int64_t count) {
  const int64_t blocks = p.x.k / kBlock, next_rows = tile_floats(p.x.k, parts);
  clear_tile<0>();
  clear_tile<1>();
  clear_tile<2>();
  clear_tile<3>();
  for (int64_t b = 0; b < blocks; ++b, w += kBlockBytes) {
    if (ahead != nullptr)
      ask_for<2 * kTileRows * kBlockBytes>(ahead + b * 2 * kTileRows * kBlockBytes);
    load_tile<4>(w, p.row_bytes);
    load_tile<5>(w + kTileRows * p.row_bytes, p.row_bytes);
#pragma GCC unroll 2
    for (int part = 0; part < parts; ++part, x += kTileFloats) {
      load_tile<6>(x, kBlockBytes);
      add_tile_product<0, 4, 6>();
      add_tile_product<1, 5, 6>();
      if constexpr (tiles == 2) {
        load_tile<7>(x + next_rows, kBlockBytes);
        add_tile_product<2, 4, 7>();
        add_tile_product<3, 5, 7>();
      }
    }
  }
  HWY_ALIGN float sums[4][kTileFloats];
  store_tile<0>(sums[0], kBlockBytes);
  store_tile<1>(sums[1], kBlockBytes);
  store_tile<2>(sums[2], kBlockBytes);
  store_tile<3>(sums[3], kBlockBytes);
#pragma GCC unroll 1
  for (int64_t t = 0; t < 2 * tiles; ++t) {
    const int64_t column = t % 2 * kLanes, left = count - column, from = t / 2 * kTileRows;
    if (left <= 0) continue;
    VI of_rows[kWords];
    turned(reinterpret_cast<const uint8_t*>(sums[t]), kBlockBytes, of_rows);
    const V32 bias = p.bias ? load_upto(p.bias + first + column, left) : zero();
    HWY_ALIGN float out[kWords][kLanes];
#pragma GCC unroll 16
    for (int u = 0; u < kWords; ++u) {
      const V32 sum = hn::BitCast(F32(), of_rows[u]);
      hn::Store(p.bias ? hn::Add(sum, bias) : sum, F32(), out[u]);
    }
    for (int64_t i = from; i < std::min(rows, from + kTileRows); ++i)
      store_upto(hn::Load(F32(), out[i - from]), p.y + (row + i) * p.y_stride + first + column,
                 left);
  }
}

template <int parts>
HWY_INLINE void multiply_tiles(const Bf16Problem& p, int64_t begin, int64_t end) {
  constexpr int64_t kAtOnce = 2 * kTileRows;
  const int64_t x_floats = tile_floats(p.x.k, parts);
  float* x = scratch<38>((std::min(p.x.m, kTiledRows) + kTileRows - 1) / kTileRows * x_floats);
  // the last columns, with others that are not used
  uint8_t* rest = nullptr;
  const int64_t more = (end - begin) % kAtOnce;
  if (more > 0) {
    rest = reinterpret_cast<uint8_t*>(scratch<39>(kAtOnce * p.row_bytes / 4));
    std::memset(rest, 0, static_cast<size_t>(kAtOnce * p.row_bytes));
    std::memcpy(rest, p.w + (end - more) * p.row_bytes, static_cast<size_t>(more * p.row_bytes));
  }
  const Tiles tiles;
  for (int64_t row = 0; row < p.x.m; row += kTiledRows) {
    const int64_t rows = std::min(kTiledRows, p.x.m - row);
    for (int64_t i = 0; i < rows; i += kTileRows)
      spread(p, row + i, std::min(kTileRows, rows - i), x + i / kTileRows * x_floats);
    for (int64_t j = begin; j < end; j += kAtOnce) {
      const int64_t count = std::min(kAtOnce, end - j);
      const uint8_t* w = count < kAtOnce ? rest : p.w + j * p.row_bytes;
      const uint8_t* ahead = j + 2 * kAtOnce <= end ? w + kAtOnce * p.row_bytes : nullptr;
      for (int64_t i = 0; i < rows; i += kAtOnce, ahead = nullptr) {
        const float* of_rows = x + i / kTileRows * x_floats;
        rows - i > kTileRows
            ? multiply_square<parts, 2>(p, w, ahead, of_rows, row + i, std::min(kAtOnce, rows - i),
                                        j, count)
            : multiply_square<parts, 1>(p, w, ahead, of_rows, row + i, rows - i, j, count);
      }
    }
  }
}

void bf16_tiles(const Bf16Problem& p, int64_t begin, int64_t end) {
  p.x.parts == 2 ? multiply_tiles<2>(p, begin, end) : multiply_tiles<1>(p, begin, end);
}

// --- both ----------------------------------------------------------------------------------------

template <int parts>
HWY_INLINE void multiply_columns(const Bf16Problem& p, int64_t begin, int64_t end) {
  if (p.x.m <= kFewRows && end - begin >= kLanes) return multiply_few<parts>(p, begin, end);
  multiply_many<parts>(p, begin, end);
}

void bf16_columns(const Bf16Problem& p, int64_t begin, int64_t end) {
  p.x.parts == 2 ? multiply_columns<2>(p, begin, end) : multiply_columns<1>(p, begin, end);
}

Bf16Kernels bf16_kernels() {
  return {bf16_round, bf16_columns, bf16_tiles};
}

#else

Bf16Kernels bf16_kernels() {
  return {};
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(bf16_kernels);

bool bf16_rows_pay(int64_t k) {
  static const bool amd = cpu_info().has_avx512_bf16 && cpu_info().allowed >= CpuTarget::avx512 &&
                          cpu_info().model.find("AMD") != std::string::npos;
  return (amd && k % 32 == 0) || bf16_pairs_pay(k);
}

bool bf16_pairs_pay(int64_t k) {
  return cpu_info().has_avx512_bf16 && use_tiles() && k % 32 == 0;
}

int64_t bf16_row_bytes(int64_t k, int parts) {
  return 2 * parts * k;
}

namespace {

Bf16Kernels kernels_here() {
  return cpu_info().has_avx512_bf16 ? HWY_DYNAMIC_DISPATCH(bf16_kernels)() : Bf16Kernels{};
}

}  // namespace

void round_to_bf16(const RoundedRows& rows, int64_t begin, int64_t end) {
  const Bf16Kernels kernels = kernels_here();
  if (kernels.round != nullptr) kernels.round(rows, begin, end);
}

void bf16_matmul(
    const RoundedRows& x, const void* w, int64_t n, const float* bias, float* y, int64_t y_stride) {
  const Bf16Kernels kernels = kernels_here();
  if (kernels.columns == nullptr || x.k == 0)
    return matmul(x.x, x.m, x.k, x.x_stride, DType::bf16, w, n, bias, y, y_stride);
  const Bf16Problem problem{x, static_cast<const uint8_t*>(w), n, 2 * x.k, bias, y, y_stride};
  const auto multiply = use_tiles() ? kernels.tiles : kernels.columns;
  // a task has at least 2^16 multiply-adds
  constexpr int64_t kTile = 32;
  const int64_t grain = 1 + (int64_t{1} << 16) / (kTile * std::max<int64_t>(1, x.k) * x.m);
  parallel_for((n + kTile - 1) / kTile, grain, [&](int64_t begin, int64_t end) {
    multiply(problem, begin * kTile, std::min(end * kTile, n));
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE
