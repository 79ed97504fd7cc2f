// AMX: eight registers of 16 rows of 64 bytes, tiles, and products of two of them that are added to
// a third.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// Whether kernels that have a form for tiles take it: the processor has usable ones, TESSERA_CPU
/// lets them, and neither a TargetScope nor a WithoutTiles lives.
bool use_tiles();

/// For tests and benchmarks: the best target without tiles. Not thread safe.
class WithoutTiles {
 public:
  WithoutTiles();
  ~WithoutTiles();
  WithoutTiles(const WithoutTiles&) = delete;
  WithoutTiles& operator=(const WithoutTiles&) = delete;
};

#if defined(__x86_64__)

/// While it lives this thread has its eight tiles. They are state of the thread that libtorch's
/// library uses as well, which sets them up when it computes: released at the end. Not nested.
class Tiles {
 public:
  Tiles() {
    static constexpr Shapes kShapes;
    asm volatile("ldtilecfg %0" : : "m"(kShapes));
  }
  ~Tiles() { asm volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  struct alignas(64) Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static_assert(sizeof(Shapes) == 64);
};

// The numbers of tiles are part of the instructions. Macros of the compiler's header need its
// targets, which these sources, compiled for several, have not.

template <int tile>
inline __attribute__((always_inline)) void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}
/// 16 rows of 64 bytes, `stride` bytes apart.
template <int tile>
inline __attribute__((always_inline)) void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0, %1, 1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
inline __attribute__((always_inline)) void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0, %1, 1)" : : "r"(to), "r"(stride), "i"(tile) : "memory");
}
/// sum[i][j] += the products of row i of a, 16 pairs of bfloat16, with pairs j of the rows of b:
/// first the sums of the pairs' first numbers and of their second ones, in order, then both.
/// Numbers below 2^-126 are zeros.
template <int sum, int a, int b>
inline __attribute__((always_inline)) void add_tile_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(a), "i"(b));
}

#endif

}  // namespace tessera::kernels
