#include "tessera/kernels/weights/quantize.h"

#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/kernels_testing.h"
#include "tessera/kernels/weights/blocks.h"
#include "tessera/kernels/weights/blocks_testing.h"

namespace tessera::kernels::quantize_test {
namespace {

// the types that the package gguf writes, and those that search
constexpr DType kOfPackage[] = {DType::q8_0, DType::q4_0,  DType::q4_1,  DType::q5_0,
                                DType::q5_1, DType::mxfp4, DType::tq1_0, DType::tq2_0};
constexpr DType kSearched[] = {DType::q2_k, DType::q3_k,   DType::q4_k,  DType::q5_k,
                               DType::q6_k, DType::iq4_nl, DType::iq4_xs};
// those that importance changes besides
constexpr DType kWeighted[] = {DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1};

std::vector<DType> all_types() {
  std::vector<DType> types(std::begin(kOfPackage), std::end(kOfPackage));
  types.insert(types.end(), std::begin(kSearched), std::end(kSearched));
  return types;
}

void expect_bytes(const uint8_t* got, const std::vector<uint8_t>& want, DType type) {
  const int64_t size = layout_of(type).block_bytes;
  for (int64_t i = 0; i < std::ssize(want); ++i)
    ASSERT_EQ(got[i], want[at(i)])
        << name_of(type) << " block " << i / size << " byte " << i % size;
}

TEST(Quantize, EqualsGgufByteForByte) {
  for (const DType type : kOfPackage) {
    const test::BlockGolden g = test::block_golden(type, "to_");
    const auto n = static_cast<int64_t>(g.values.size());
    ASSERT_EQ(storage_bytes(type, n), static_cast<int64_t>(g.blocks.size()));
    std::vector<uint8_t> got(g.blocks.size() + 1);
    for (const int offset : {0, 1}) {
      quantize(type, g.values.data(), n, got.data() + offset);
      expect_bytes(got.data() + offset, g.blocks, type);
    }
  }
}

class QuantizeRows : public testing::Test {
 protected:
  void expect(DType type, const char* which, const float* importance) {
    const auto json = test::block_json("ggml_" + std::string(name_of(type)));
    const auto want = test::from_hex(json[which].get<std::string>());
    ASSERT_EQ(storage_bytes(type, rows_ * k_), std::ssize(want));
    std::vector<uint8_t> got(want.size() + 1);
    for (const int offset : {0, 1})
      on_every_target([&] {
        quantize_rows(type, values_.data(), rows_, k_, importance, got.data() + offset);
        expect_bytes(got.data() + offset, want, type);
      });
  }
  const spec::Json json_ = test::block_json("ggml");
  const std::vector<float> values_ = test::floats_from_hex(json_["values"].get<std::string>());
  const std::vector<float> importance_ =
      test::floats_from_hex(json_["importance"].get<std::string>());
  const int64_t k_ = std::ssize(importance_), rows_ = std::ssize(values_) / k_;
};

TEST_F(QuantizeRows, EqualGgmlByteForByte) {
  for (const DType type : kSearched) expect(type, "plain", nullptr);
}

TEST_F(QuantizeRows, EqualGgmlByteForByteWithImportance) {
  for (const DType type : kSearched) expect(type, "weighted", importance_.data());
  for (const DType type : kWeighted) expect(type, "weighted", importance_.data());
}

TEST(Quantize, BytesDoNotTurnOnTheThreads) {
  constexpr int64_t kK = 512, kRows = 60;
  std::vector<float> values(at(kK * kRows)), importance(at(kK));
  const RandomKey key(5);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(key.bits(i) % 2001) * 0.001F - 1;
  for (size_t i = 0; i < importance.size(); ++i)
    importance[i] = static_cast<float>(key.bits(i) % 100 + 1);
  const int before = thread_count();
  for (const DType type : all_types())
    for (const float* weights :
         {static_cast<const float*>(nullptr), static_cast<const float*>(importance.data())}) {
      std::vector<uint8_t> bytes[3];
      for (const int threads : {1, 2, 3}) {
        set_thread_count(threads);
        auto& to = bytes[threads - 1];
        to.resize(at(storage_bytes(type, kK * kRows)));
        quantize_rows(type, values.data(), kRows, kK, weights, to.data());
      }
      EXPECT_EQ(bytes[0], bytes[1]) << name_of(type);
      EXPECT_EQ(bytes[0], bytes[2]) << name_of(type);
      // half a step of even codes from -1 to 1, and what the search of scales leaves of it
      // (mxfp4 has codes close to zero instead)
      const bool ternary = type == DType::tq1_0 || type == DType::tq2_0;
      const int codes = ternary                                       ? 3
                        : type == DType::q2_k                         ? 4
                        : type == DType::q3_k || type == DType::mxfp4 ? 8
                                                                      : 16;
      std::vector<float> back(at(kK * kRows));
      dequantize(type, bytes[0].data(), kK * kRows, back.data());
      double square = 0;
      for (size_t i = 0; i < values.size(); ++i)
        square += (back[i] - values[i]) * (back[i] - values[i]);
      EXPECT_LT(std::sqrt(square / static_cast<double>(values.size())), 1.0 / codes)
          << name_of(type);
    }
  set_thread_count(before);
}

TEST(Quantize, RefusesWhatItHasNoCodeFor) {
  float x[64] = {};
  uint8_t bytes[64];
  EXPECT_THROW(quantize(DType::q8_0, x, 33, bytes), Error);
  EXPECT_THROW(quantize(DType::q4_k, x, 64, bytes), Error);
  EXPECT_THROW(quantize(DType::f16, x, 0, bytes), Error);
  EXPECT_FALSE(can_quantize(DType::f16));
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    x[40] = bad;
    EXPECT_THROW(quantize(DType::q4_1, x, 64, bytes), Error);
  }
}

}  // namespace
}  // namespace tessera::kernels::quantize_test
