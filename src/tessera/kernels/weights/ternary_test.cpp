#include "tessera/kernels/weights/ternary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/rng.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/weights/blocks.h"

namespace tessera::kernels::ternary_test {
namespace {

std::vector<float> drawn(size_t n, float width) {
  const RandomKey key(3);
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i)
    out[i] = width * (static_cast<float>(key.bits(i) % 20001) / 10000.0f - 1);
  return out;
}

TEST(Ternary, MeanIsThatOfAllNumbersForAnyThreads) {
  const std::vector<float> w = drawn(100'003, 0.02f);
  double sum = 0;
  for (const float x : w) sum += std::abs(static_cast<double>(x));
  const float want = static_cast<float>(sum / static_cast<double>(w.size()));
  for (const int threads : {1, 3}) {
    const Threads scope(threads);
    EXPECT_FLOAT_EQ(absmean(w.data(), std::ssize(w)), want);
  }
  const std::vector<float> zeros(7, 0.0f);
  EXPECT_EQ(absmean(zeros.data(), 7), 1e-5f);
  const std::vector<float> broken = {1.0f, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(std::isnan(absmean(broken.data(), 2)));
}

// ties go to the even neighbour, which is 0
TEST(Ternary, CodesAreTheNearestOfThree) {
  const float w[] = {-9.0f, -1.01f, -1.0f, -0.2f, 0.0f, 1.0f, 1.01f, 40.0f};
  uint8_t codes[8];
  ternary_codes(w, 8, 2.0f, codes);
  const uint8_t want[] = {0, 0, 1, 1, 1, 1, 2, 2};
  float values[8];
  ternary_values(w, 8, 2.0f, values);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(codes[i], want[i]) << i;
    EXPECT_EQ(values[i], 2.0f * (static_cast<float>(want[i]) - 1)) << i;
  }
}

TEST(Ternary, BlocksHoldTheNumbersExactly) {
  const std::vector<float> w = drawn(3 * 512, 1.0f);
  std::vector<uint8_t> codes(w.size());
  ternary_codes(w.data(), std::ssize(w), 0.5f, codes.data());
  struct Case {
    int64_t columns;
    float d;
    DType type;
  };
  for (const Case& c : {Case{512, 0.75f, DType::tq2_0}, Case{512, 0.1f, DType::scaled_u4},
                        Case{96, 0.75f, DType::scaled_u4}, Case{24, 0.75f, DType::f32}}) {
    const float factors[] = {c.d};
    ASSERT_EQ(ternary_type(c.columns, factors), c.type) << c.columns << " " << c.d;
    std::vector<uint8_t> blocks(static_cast<size_t>(storage_bytes(c.type, std::ssize(w))));
    put_ternary(c.type, codes.data(), std::ssize(w), c.d, blocks.data());
    std::vector<float> values(w.size());
    dequantize(c.type, blocks.data(), std::ssize(w), values.data());
    std::vector<uint8_t> again(w.size());
    float d = 0;
    ASSERT_TRUE(read_ternary(values.data(), std::ssize(w), again.data(), d));
    EXPECT_EQ(d, c.d);
    EXPECT_EQ(again, codes);
  }
}

TEST(Ternary, ReadRefusesOtherNumbers) {
  uint8_t codes[3];
  float d = 0;
  const float two[] = {0.5f, -0.25f, 0.0f}, none[] = {0.0f, -0.0f, 0.0f};
  EXPECT_FALSE(read_ternary(two, 3, codes, d));
  EXPECT_TRUE(read_ternary(none, 3, codes, d));
  EXPECT_EQ(d, 0.0f);
  EXPECT_THROW(put_ternary(DType::tq2_0, codes, 3, 1.0f, codes), Error);
}

}  // namespace
}  // namespace tessera::kernels::ternary_test
