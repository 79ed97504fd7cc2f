// What the cache of blocks keeps and lets go, and that a heap beside it stays dense.
#include "tessera/ops/block_cache.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tessera/base/allocator.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops::block_cache_test {
namespace {

Tensor mib(int64_t n) {
  return at::ones({n << 18});
}

size_t cached_mib() {
  return block_cache_stats().cached_bytes >> 20;
}

/// Starts from an empty cache.
class BlockCache : public testing::Test {
 protected:
  BlockCache() {
    use_block_cache();
    release_block_cache();
  }
  ~BlockCache() override { release_block_cache(); }
};

TEST_F(BlockCache, ABlockComesBack) {
  const size_t live = block_cache_stats().live_bytes;
  const void* first = nullptr;
  {
    const Tensor t = mib(4);
    first = t.const_data_ptr();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % (2 << 20), 0u);
    EXPECT_EQ(block_cache_stats().live_bytes, live + (4 << 20));
  }
  EXPECT_EQ(block_cache_stats().live_bytes, live);
  EXPECT_EQ(mib(4).const_data_ptr(), first);
  release_block_cache();
  EXPECT_EQ(block_cache_stats().cached_bytes, 0u);
}

TEST_F(BlockCache, SmallBlocksAreNotRoundedToHugePages) {
  const size_t live = block_cache_stats().live_bytes;
  const Tensor t = at::empty({(1 << 20) + 1}, at::kByte);
  EXPECT_EQ(block_cache_stats().live_bytes, live + (5 << 18));
  EXPECT_EQ(asked_of_block_cache(t.data_ptr()), (1u << 20) + 1);
}

TEST_F(BlockCache, WhatCannotBeIsAnError) {
  EXPECT_THROW(at::empty({int64_t{1} << 60}), std::exception);
}

// The bound is 1.5 times what was in use at most: the two large blocks here.
TEST_F(BlockCache, LetsTheLongestUnusedGo) {
  constexpr int64_t kLarge = 512;
  { const Tensor a = mib(kLarge), b = mib(kLarge); }
  ASSERT_EQ(cached_mib(), 2 * kLarge);
  // all sizes of a step stay at hand, though they never are in use together
  mib(300);
  EXPECT_EQ(cached_mib(), 2 * kLarge + 300);
  // one of the two large ones, the longest unused, for the block that is too much
  mib(260);
  EXPECT_EQ(cached_mib(), kLarge + 300 + 260);
  mib(300);
  EXPECT_EQ(cached_mib(), kLarge + 300 + 260);
}

int64_t anonymous_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (int64_t kib = 0; word == "RssAnon:" && status >> kib) return kib >> 10;
  ADD_FAILURE() << "no RssAnon";
  return 0;
}

TEST_F(BlockCache, WhatIsKeptBetweenStepsDoesNotMakeMemoryGrow) {
  keep_freed_memory();
  const auto step = [](std::vector<Tensor>& kept) {
    const Tensor a = mib(28), b = mib(18);
    for (int i = 0; i < 8; ++i) kept.push_back(at::ones({1 << 15}));  // 1 MiB in all
    const Tensor c = mib(28);
  };
  std::vector<Tensor> kept;
  step(kept);
  const int64_t before = anonymous_mib();
  constexpr int64_t kSteps = 100;
  for (int64_t i = 0; i < kSteps; ++i) step(kept);
  EXPECT_LE(anonymous_mib() - before, kSteps + 64);
}

}  // namespace
}  // namespace tessera::ops::block_cache_test
