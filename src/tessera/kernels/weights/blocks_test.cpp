#include "tessera/kernels/weights/blocks.h"

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/kernels_testing.h"
#include "tessera/kernels/weights/blocks_testing.h"

namespace tessera::kernels::blocks_test {
namespace {

using test::block_golden;
using test::BlockGolden;

constexpr DType kReadable[] = {DType::f32,       DType::f16,       DType::bf16,       DType::q4_0,
                               DType::q4_1,      DType::q5_0,      DType::q5_1,       DType::q8_0,
                               DType::q2_k,      DType::q3_k,      DType::q4_k,       DType::q5_k,
                               DType::q6_k,      DType::mxfp4,     DType::iq4_nl,     DType::iq4_xs,
                               DType::scaled_u4, DType::scaled_i8, DType::scaled_e4m3, DType::iq1_s, DType::iq1_m, DType::iq2_xxs, DType::iq2_xs, DType::iq2_s, DType::iq3_xxs, DType::iq3_s, DType::tq1_0, DType::tq2_0};

TEST(Dequantize, EqualsGgufBitForBit) {
  for (const DType type : kReadable) {
    if (type == DType::f32) continue;
    const BlockGolden g = block_golden(type);
    const auto n = static_cast<int64_t>(g.values.size());
    ASSERT_GT(n, 0);
    std::vector<float> got(g.values.size());
    dequantize_ref(type, g.blocks.data(), n, got.data());
    expect_same_bits(got.data(), g.values.data(), n, std::string(name_of(type)) + " plain");
    on_every_target([&] {
      std::fill(got.begin(), got.end(), -1.0f);
      dequantize(type, g.blocks.data(), n, got.data());
      expect_same_bits(got.data(), g.values.data(), n, std::string(name_of(type)));
    });
  }
}

TEST(Dequantize, EveryHalfIsExactOnEveryTarget) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> got(halves.size());
  on_every_target([&] {
    for (const DType type : {DType::f16, DType::bf16}) {
      dequantize(type, halves.data(), 65536, got.data());
      for (size_t i = 0; i < halves.size(); ++i) {
        const float want = type == DType::f16 ? f16_to_float(halves[i]) : bf16_to_float(halves[i]);
        if (std::isnan(want))
          ASSERT_TRUE(std::isnan(got[i])) << i;
        else
          ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want)) << i;
      }
    }
  });
}

TEST(Dequantize, EqualsPlainFormAtOddSizesAndOffsets) {
  for (const DType type : kReadable) {
    const int64_t block = layout_of(type).block_elements;
    for (const int64_t blocks : {1, 7, 65, 1000}) {
      const int64_t n = blocks * block;
      std::vector<uint8_t> bytes(at(storage_bytes(type, n) + 3));
      const RandomKey key(3);
      // 0x3f keeps every 16-bit scale finite
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(key.bits(i)) & 0x3f;
      std::vector<float> want(at(n)), got(at(n + 1));
      for (const int offset : {0, 1, 3}) {
        parallel_for(1, 1, [&](int64_t, int64_t) {  // where denormal numbers are zeros
          dequantize_ref(type, bytes.data() + offset, n, want.data());
        });
        on_every_target([&] {
          got[at(n)] = 77;
          dequantize(type, bytes.data() + offset, n, got.data());
          expect_same_bits(got.data(), want.data(), n, std::string(name_of(type)));
          EXPECT_EQ(got[at(n)], 77.0f) << "wrote past the end";
        });
      }
    }
  }
}

TEST(Dequantize, RefusesOtherTypesAndBrokenBlocks) {
  float y[64];
  const uint8_t bytes[64] = {};
  EXPECT_THROW(dequantize(DType::i32, bytes, 1, y), Error);
  EXPECT_THROW(dequantize(DType::q8_0, bytes, 31, y), Error);
  EXPECT_THROW(dequantize(DType::f32, bytes, -1, y), Error);
}

}  // namespace
}  // namespace tessera::kernels::blocks_test
