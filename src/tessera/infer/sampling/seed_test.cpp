#include "tessera/infer/sampling/seed.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace tessera::infer::seed_test {
namespace {

TEST(Seed, IsTheNumber) {
  EXPECT_EQ(seed_of("0"), 0u);
  EXPECT_EQ(seed_of("9223372036854775808"), uint64_t{1} << 63);
  EXPECT_EQ(seed_of("18446744073709551615"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(seed_of("7"), 7u);
}

TEST(Seed, IsFreshForMinusOne) {
  std::set<uint64_t> seeds;
  for (int i = 0; i < 8; ++i) {
    seeds.insert(seed_of("-1").value());
    seeds.insert(fresh_seed());
  }
  EXPECT_EQ(seeds.size(), 16u);
  // a double holds each
  EXPECT_LT(*seeds.rbegin(), uint64_t{1} << 48);
}

TEST(Seed, IsNothingForOtherText) {
  for (const char* text : {"", "-", "-2", "-01", "-9223372036854775808", "x", "1x", "1.5", " 1",
                           "18446744073709551616", "+1", "-9223372036854775809"})
    EXPECT_FALSE(seed_of(text)) << text;
}

}  // namespace
}  // namespace tessera::infer::seed_test
