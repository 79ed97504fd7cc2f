#include "tessera/kernels/weights/blocks.h"

#include <fstream>
#include <iterator>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/kernels_testing.h"
#include "tessera/kernels/weights/quantize.h"
#include "tessera/spec/json.h"

namespace tessera::kernels::blocks_test {
namespace {

constexpr DType kReadable[] = {DType::f32,  DType::f16,  DType::bf16, DType::q4_0, DType::q4_1,
                               DType::q5_0, DType::q5_1, DType::q8_0, DType::q2_k, DType::q3_k,
                               DType::q4_k, DType::q5_k, DType::q6_k, DType::mxfp4};

std::vector<uint8_t> from_hex(const std::string& hex) {
  std::vector<uint8_t> bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

struct Golden {
  std::vector<uint8_t> blocks;
  std::vector<float> values;
};

/// `prefix`: "" of what is read, "to_" of what is written.
Golden golden(DType type, const std::string& prefix = "") {
  const std::string path = std::string(TESSERA_SOURCE_DIR) + "/tests/golden/blocks/" + prefix +
                           std::string(name_of(type)) + ".json";
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto json = spec::parse_json(text, path);
  const auto bytes = from_hex(json["values"].get<std::string>());
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return {from_hex(json["blocks"].get<std::string>()), values};
}

TEST(Dequantize, EqualsGgufBitForBit) {
  for (const DType type : kReadable) {
    if (type == DType::f32) continue;
    const Golden g = golden(type);
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
        dequantize_ref(type, bytes.data() + offset, n, want.data());
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

constexpr DType kWritable[] = {DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1};

TEST(Quantize, EqualsGgufByteForByte) {
  for (const DType type : kWritable) {
    const Golden g = golden(type, "to_");
    const auto n = static_cast<int64_t>(g.values.size());
    ASSERT_EQ(storage_bytes(type, n), static_cast<int64_t>(g.blocks.size()));
    std::vector<uint8_t> got(g.blocks.size() + 1);
    for (const int offset : {0, 1}) {
      quantize(type, g.values.data(), n, got.data() + offset);
      const int64_t size = layout_of(type).block_bytes;
      for (int64_t i = 0; i < std::ssize(g.blocks); ++i)
        ASSERT_EQ(got[at(i + offset)], g.blocks[at(i)])
            << name_of(type) << " block " << i / size << " byte " << i % size;
    }
  }
}

TEST(Quantize, BytesDoNotTurnOnTheThreads) {
  constexpr int64_t kN = 32 * 1000;
  std::vector<float> values(at(kN));
  const RandomKey key(5);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(key.bits(i) % 2001) * 0.001F - 1;
  const int before = thread_count();
  for (const DType type : kWritable) {
    std::vector<uint8_t> bytes[3];
    for (const int threads : {1, 2, 3}) {
      set_thread_count(threads);
      auto& to = bytes[threads - 1];
      to.resize(at(storage_bytes(type, kN)));
      quantize(type, values.data(), kN, to.data());
    }
    EXPECT_EQ(bytes[0], bytes[1]) << name_of(type);
    EXPECT_EQ(bytes[0], bytes[2]) << name_of(type);
    // within half a step, which in the worst block is 2 / 15 or 1 / 8
    std::vector<float> back(at(kN));
    dequantize(type, bytes[0].data(), kN, back.data());
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(back[i], values[i], 0.13) << i;
  }
  set_thread_count(before);
}

TEST(Quantize, RefusesWhatItHasNoCodeFor) {
  float x[64] = {};
  uint8_t bytes[64];
  EXPECT_THROW(quantize(DType::q8_0, x, 33, bytes), Error);
  EXPECT_THROW(quantize(DType::q4_k, x, 0, bytes), Error);
  EXPECT_FALSE(can_quantize(DType::f16));
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    x[40] = bad;
    EXPECT_THROW(quantize(DType::q4_1, x, 64, bytes), Error);
  }
}

}  // namespace
}  // namespace tessera::kernels::blocks_test
