#include "tessera/kernels/tiles.h"

#include <array>

#include "tessera/base/cpu.h"
#include "tessera/base/half.h"
#include "tessera/kernels/kernels_testing.h"
#include "tessera/kernels/weights/gemm.h"

namespace tessera::kernels::tiles_test {
namespace {

TEST(Tiles, AreTakenWhereNothingKeepsKernelsFromThem) {
  const bool here = cpu_info().allowed == CpuTarget::amx;
  EXPECT_EQ(use_tiles(), here);
  {
    const WithoutTiles without;
    EXPECT_FALSE(use_tiles());
    const TargetScope scope(current_target());
    EXPECT_FALSE(use_tiles());
  }
  EXPECT_EQ(use_tiles(), here);
}

#if defined(__x86_64__)

TEST(Tiles, AddProductsOfPairs) {
  if (!use_tiles()) GTEST_SKIP() << "no AMX here";
  // whole numbers, whose sums are exact
  std::array<std::array<uint16_t, 32>, 16> a{}, b{};
  std::array<std::array<float, 16>, 16> sums{};
  const auto a_at = [](size_t i, size_t p) { return static_cast<float>((5 * i + 3 * p) % 17) - 8; };
  const auto b_at = [](size_t p, size_t j) { return static_cast<float>((7 * p + 2 * j) % 13) - 6; };
  for (size_t i = 0; i < 16; ++i)
    for (size_t p = 0; p < 32; ++p) {
      a[i][p] = float_to_bf16(a_at(i, p));
      b[p / 2][2 * i + p % 2] = float_to_bf16(b_at(p, i));
    }
  {
    const Tiles tiles;
    clear_tile<2>();
    load_tile<0>(a.data(), 64);
    load_tile<1>(b.data(), 64);
    add_tile_product<2, 0, 1>();
    add_tile_product<2, 0, 1>();
    store_tile<2>(sums.data(), 64);
  }
  for (size_t i = 0; i < 16; ++i)
    for (size_t j = 0; j < 16; ++j) {
      float want = 0;
      for (size_t p = 0; p < 32; ++p) want += 2 * a_at(i, p) * b_at(p, j);
      EXPECT_EQ(sums[i][j], want) << i << ", " << j;
    }
}

// Which of its states a thread uses at this moment: bits 17 and 18 are those of tiles.
uint32_t states_in_use() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
  return low;
}

TEST(Tiles, AreReleasedWhenAProductIsDone) {
  if (!use_tiles()) GTEST_SKIP() << "no AMX here";
  constexpr uint32_t kTiles = 3U << 17;
  const Values x(64 * 64, 1);
  {
    const Tiles tiles;
    load_tile<0>(x.data(), 64);
    EXPECT_EQ(states_in_use() & kTiles, kTiles);
  }
  EXPECT_EQ(states_in_use() & kTiles, 0U);
  const Threads one(1);
  Values y(64 * 64);
  gemm(ProductType::bf16, {x.data(), 64, 1}, {x.data(), 64, 1}, 64, 64, 64, y.data(), 64, false);
  EXPECT_EQ(states_in_use() & kTiles, 0U);
}

#endif

}  // namespace
}  // namespace tessera::kernels::tiles_test
