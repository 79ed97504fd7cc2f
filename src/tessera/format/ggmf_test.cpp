#include "tessera/format/ggmf.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>

#include <gtest/gtest.h>

#include "tessera/format/test_support.h"

namespace tessera::format::ggmf_test {
namespace {

using test::bytes_of;
using test::ByteString;
using Shape = std::vector<int64_t>;

constexpr int32_t kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 7, kQ5_1 = 8, kQ8_0 = 9;

struct Header {
  uint32_t magic = 0x67676d66;
  int32_t version = 101, vocab = 3, embed = 4, layers = 1, type = kF32;
};

ByteString file_of(const Header& h) {
  ByteString bytes;
  bytes.number(h.magic).number(h.version).number(h.vocab).number(h.embed).number(h.layers);
  return bytes.number(h.type);
}

/// A tensor of zeros; `sizes` from the fastest axis, as in the file.
struct Tensor {
  std::vector<int32_t> sizes = {4, 3};
  std::string name = "emb.weight";
  int32_t type = kF32;
  size_t data_bytes = 48;
  std::optional<int32_t> rank = {}, name_bytes = {};
};

ByteString& add(ByteString& bytes, const Tensor& t) {
  bytes.number(t.rank.value_or(static_cast<int32_t>(t.sizes.size())))
      .number(t.name_bytes.value_or(static_cast<int32_t>(t.name.size())))
      .number(t.type);
  for (const int32_t size : t.sizes) bytes.number(size);
  return bytes.raw(t.name).zeros(t.data_bytes);
}

std::string with(const Tensor& tensor, const Header& header = {}) {
  ByteString bytes = file_of(header);
  return add(bytes, tensor).text();
}

GgmfFile read(std::string_view text) {
  return read_ggmf(bytes_of(text), "x.bin");
}

TEST(Ggmf, ReadsHeaderAndTensorsInTheOrderOfTheFile) {
  ByteString bytes = file_of({.version = 100, .type = kF16});
  bytes.number(2).number(1).number(kF32).number(2).number(3).raw("w");
  for (int i = 0; i < 6; ++i) bytes.number(static_cast<float>(i));
  bytes.number(1).number(2).number(kF16).number(3).raw("bb").zeros(6);
  add(bytes, {.sizes = {4, 3, 2}, .name = "c", .data_bytes = 96});
  const GgmfFile file = read(bytes.text());
  EXPECT_EQ(file.header.version, 100);
  EXPECT_EQ(file.header.n_vocab, 3);
  EXPECT_EQ(file.header.n_embed, 4);
  EXPECT_EQ(file.header.n_layer, 1);
  EXPECT_EQ(file.header.data_type, "F16");
  ASSERT_EQ(file.tensors.tensors().size(), 3u);
  const TensorView& w = file.tensors.tensors()[0];
  EXPECT_EQ(w.name, "w");
  EXPECT_EQ(w.shape, (Shape{3, 2}));  // the file has the fastest axis first
  float last = 0;
  std::memcpy(&last, w.data.data() + 20, sizeof(last));
  EXPECT_EQ(last, 5);
  EXPECT_EQ(file.tensors.tensors()[1].dtype, DType::f16);
  EXPECT_EQ(file.tensors.at("c").shape, (Shape{2, 3, 4}));
}

TEST(Ggmf, ReadsBlocksOfEveryType) {
  const std::tuple<int32_t, DType, size_t> types[] = {{kQ4_0, DType::q4_0, 18},
                                                      {kQ4_1, DType::q4_1, 20},
                                                      {kQ5_0, DType::q5_0, 22},
                                                      {kQ5_1, DType::q5_1, 24},
                                                      {kQ8_0, DType::q8_0, 34}};
  for (const auto& [type, dtype, block] : types) {
    const GgmfFile file = read(with({{64, 3}, "q", type, 6 * block}));
    EXPECT_EQ(file.tensors.at("q").dtype, dtype);
    EXPECT_EQ(file.tensors.at("q").data.size(), 6 * block);
  }
  // of 256 elements
  const std::tuple<int32_t, DType, size_t> large[] = {{11, DType::q2_k, 84},
                                                      {12, DType::q3_k, 110},
                                                      {13, DType::q4_k, 144},
                                                      {14, DType::q5_k, 176},
                                                      {15, DType::q6_k, 210}};
  for (const auto& [type, dtype, block] : large)
    EXPECT_EQ(read(with({{256}, "q", type, block})).tensors.at("q").dtype, dtype);
}

TEST(Ggmf, ListsTypesThatNothingComputesWith) {
  const GgmfFile file = read(with({{32}, "q", 10, 40}));
  EXPECT_TRUE(file.tensors.tensors().empty());
  ASSERT_EQ(file.tensors.unsupported().size(), 1u);
  EXPECT_EQ(file.tensors.unsupported()[0].type, "Q8_1");
  EXPECT_EQ(read(with({{256}, "q", 16, 292})).tensors.unsupported()[0].type, "Q8_K");
}

TEST(Ggmf, RefusesEveryPrefixOfAFileOfOneTensor) {
  test::expect_prefixes_refused(with({}), read);
}

TEST(Ggmf, RefusesEveryPrefixThatCutsALaterTensor) {
  ByteString bytes = file_of({});
  add(bytes, {});
  const size_t whole = bytes.text().size();
  const std::string two = add(bytes, {.sizes = {2}, .name = "b", .data_bytes = 8}).text();
  for (size_t size = whole + 1; size < two.size(); ++size)
    EXPECT_NE(test::error_of([&] { read(std::string_view(two).substr(0, size)); }), "") << size;
  EXPECT_EQ(read(std::string_view(two).substr(0, whole)).tensors.tensors().size(), 1u);
}

TEST(Ggmf, SaysWhichRuleIsBroken) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  ByteString twice = file_of({});
  add(twice, {});
  add(twice, {});
  test::expect_refused(
      {
          {"empty", "", "[ggmf] x.bin: byte 0: the file ends inside the magic: 0 bytes left"},
          {"magic", with({}, {.magic = 0x46554747}), "does not begin with \"fmgg\""},
          {"old version", with({}, {.version = 99}), "version 99; expected 100 or 101"},
          {"new version", with({}, {.version = 102}), "version 102; expected 100 or 101"},
          {"n_vocab", with({}, {.vocab = 0}), "n_vocab = 0; expected at least 1"},
          {"n_embed", with({}, {.embed = -4}), "n_embed = -4; expected at least 1"},
          {"n_layer", with({}, {.layers = 0}), "n_layer = 0; expected at least 1"},
          {"more layers than tensors", with({}, {.layers = 3'000'000}),
           "[ggmf] x.bin: n_layer = 3000000: found 1 tensors; expected at least one for every "
           "layer"},
          {"more words than rows", with({}, {.vocab = kMax}),
           "[ggmf] x.bin: n_vocab = 2147483647: the longest axis of a tensor is 4; expected at "
           "most "
           "that"},
          {"wider than any row", with({}, {.embed = 5}),
           "[ggmf] x.bin: n_embed = 5: the longest axis of a tensor is 4; expected at most that"},
          {"header's type", with({}, {.type = 17}),
           "the header has data type 17; expected 0 to 16"},
          {"negative type", with({}, {.type = -1}), "the header has data type -1"},
          {"header's removed type", with({}, {.type = 5}),
           "the header has data type Q4_2, which the format gave up; quantize the model again"},
          {"header's old blocks", with({}, {.version = 100, .type = kQ5_1}),
           "the header has data type Q5_1 in a file of version 100, whose blocks have an older "
           "layout; expected version 101"},
          {"no tensors", file_of({}).text(), "no tensors after the header of 24 bytes"},
          {"no axes", with({.sizes = {}, .data_bytes = 4}),
           "byte 24: a tensor of 0 axes; expected 1 to 3"},
          {"four axes", with({.sizes = {4, 3, 1, 1}}), "a tensor of 4 axes"},
          {"negative rank", with({.rank = -1}), "a tensor of -1 axes"},
          {"no name", with({.name = ""}), "a tensor's name of 0 bytes; expected 1 to 1024"},
          {"long name", with({.name = std::string(1025, 'n')}), "a tensor's name of 1025 bytes"},
          {"negative name", with({.name_bytes = -1}), "a tensor's name of -1 bytes"},
          {"name beyond the end", with({.sizes = {1}, .data_bytes = 4, .name_bytes = 900}),
           "the file ends inside the name of a tensor"},
          {"zero size", with({.sizes = {0, 3}}), "has shape [3, 0]; expected sizes from 1"},
          {"negative size", with({.sizes = {4, -3}}), "has shape [-3, 4]; expected sizes from 1"},
          {"tensor's type", with({.type = 17}),
           "byte 24: tensor \"emb.weight\" has data type 17; expected 0 to 16"},
          {"tensor's removed type", with({.type = 4}),
           "tensor \"emb.weight\" has data type Q4_1_O, which the format gave up"},
          {"another removed type", with({.type = 6}), "has data type Q4_3"},
          {"tensor's old blocks", with({{64, 3}, "q", kQ8_0, 204}, {.version = 100}),
           "tensor \"q\" has data type Q8_0 in a file of version 100"},
          {"part of a block", with({{48, 2}, "q", kQ4_0, 54}),
           "tensor \"q\" has rows of 48 elements of type Q4_0; expected a multiple of 32"},
          {"overflow", with({.sizes = {kMax, kMax, kMax}}), "overflows 64 bits"},
          {"too large", with({.sizes = {kMax}}), "the file ends inside the data of a tensor"},
          {"short data", with({.data_bytes = 47}),
           "the file ends inside the data of a tensor: 47 bytes left; expected 48"},
          {"name twice", twice.text(), "emb.weight"},
      },
      read);
}

// Sizes: SOURCES.md of the test data.
TEST(GgmfRealFile, Rwkv4) {
  const char* data = std::getenv("TESSERA_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "TESSERA_TEST_DATA is not set";
  const GgmfFile file =
      open_ggmf(std::filesystem::path(data) / "rwkv4/tiny-rwkv-4v0-660K-FP32.bin");
  EXPECT_EQ(file.header.version, 100);
  EXPECT_EQ(file.header.n_vocab, 256);
  EXPECT_EQ(file.header.n_embed, 128);
  EXPECT_EQ(file.header.n_layer, 4);
  EXPECT_EQ(file.header.data_type, "F32");
  EXPECT_EQ(file.tensors.at("emb.weight").shape, (Shape{256, 128}));
  EXPECT_EQ(file.tensors.at("blocks.3.ffn.key.weight").shape.size(), 2u);
  int64_t parameters = 0;
  for (const TensorView& tensor : file.tensors.tensors()) parameters += element_count(tensor.shape);
  EXPECT_EQ(parameters / 10'000, 66);  // "660K"
}

}  // namespace
}  // namespace tessera::format::ggmf_test
