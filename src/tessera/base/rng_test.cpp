// Philox against the known answers that its authors publish with Random123 (kat_vectors).
#include <gtest/gtest.h>

#include "tessera/base/rng.h"

namespace tessera {
namespace {

using Counter = std::array<uint32_t, 4>;

TEST(Philox, KnownAnswersOfItsAuthors) {
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // digits of pi
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomKey, ElementsAreBlocksOfPhiloxInOrder) {
  const RandomKey key(0x299f31d0a4093822);
  const Counter block = philox4x32({5, 0, 0, 0}, {0xa4093822, 0x299f31d0});
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(key.bits(20 + i), block[i]);
  EXPECT_EQ(key.block(5), block);
}

}  // namespace
}  // namespace tessera
