#include "tessera/format/llama2c.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "tessera/format/test_support.h"

namespace tessera::format::llama2c_test {
namespace {

using test::bytes_of;
using test::ByteString;

struct Sizes {
  int32_t dim = 4, hidden = 3, layers = 2, heads = 2, kv_heads = 1, vocab = 5, seq = 6;
};

// Of those sizes: embedding 20, norms 8, wq 32, wk 16, wv 16, wo 32, norms 8, w1 24, w2 24, w3 24,
// norm 4, frequencies 6 + 6; float k of the file holds k.
constexpr size_t kFloats = 20 + 8 + 32 + 16 + 16 + 32 + 8 + 24 + 24 + 24 + 4 + 12;

std::string file_of(const Sizes& s, size_t floats) {
  ByteString bytes;
  for (const int32_t n : {s.dim, s.hidden, s.layers, s.heads, s.kv_heads, s.vocab, s.seq})
    bytes.number(n);
  for (size_t i = 0; i < floats; ++i) bytes.number(static_cast<float>(i));
  return bytes.text();
}

Llama2cFile read(std::string_view text) {
  return read_llama2c(bytes_of(text), "x.bin");
}

float first_of(const TensorView& tensor) {
  float value = 0;
  std::memcpy(&value, tensor.data.data(), sizeof(value));
  return value;
}

using Shape = std::vector<int64_t>;

TEST(Llama2c, ReadsTensorsInTheOrderOfTheFile) {
  const std::string bytes = file_of({}, kFloats);
  const Llama2cFile file = read(bytes);
  EXPECT_TRUE(file.header.tied_head);
  EXPECT_EQ(file.header.kv_dim(), 2);
  EXPECT_EQ(file.tensors.tensors().size(), 1u + 2 * 9 + 3);
  EXPECT_EQ(file.tensors.at("tok_embeddings.weight").shape, (Shape{5, 4}));
  EXPECT_EQ(first_of(file.tensors.at("layers.1.attention_norm.weight")), 24);
  EXPECT_EQ(first_of(file.tensors.at("layers.0.attention.wq.weight")), 28);
  EXPECT_EQ(first_of(file.tensors.at("layers.1.attention.wk.weight")), 68);
  EXPECT_EQ(file.tensors.at("layers.1.attention.wk.weight").shape, (Shape{2, 4}));
  EXPECT_EQ(first_of(file.tensors.at("layers.0.attention.wv.weight")), 76);
  EXPECT_EQ(first_of(file.tensors.at("layers.0.attention.wo.weight")), 92);
  EXPECT_EQ(first_of(file.tensors.at("layers.0.ffn_norm.weight")), 124);
  EXPECT_EQ(file.tensors.at("layers.0.feed_forward.w1.weight").shape, (Shape{3, 4}));
  EXPECT_EQ(first_of(file.tensors.at("layers.1.feed_forward.w2.weight")), 168);
  EXPECT_EQ(file.tensors.at("layers.1.feed_forward.w2.weight").shape, (Shape{4, 3}));
  EXPECT_EQ(first_of(file.tensors.at("layers.0.feed_forward.w3.weight")), 180);
  EXPECT_EQ(first_of(file.tensors.at("norm.weight")), 204);
  EXPECT_EQ(file.tensors.at("freq_cis_real").shape, (Shape{6, 1}));
  EXPECT_EQ(first_of(file.tensors.at("freq_cis_imag")), 214);
  EXPECT_EQ(file.tensors.find("output.weight"), nullptr);
}

TEST(Llama2c, NegativeVocabularyMeansAnOwnHead) {
  const std::string bytes = file_of({.vocab = -5}, kFloats + 20);
  const Llama2cFile file = read(bytes);
  EXPECT_FALSE(file.header.tied_head);
  EXPECT_EQ(file.header.vocab_size, 5);
  EXPECT_EQ(first_of(file.tensors.at("output.weight")), static_cast<float>(kFloats));
}

TEST(Llama2c, RefusesEveryPrefix) {
  test::expect_prefixes_refused(file_of({}, kFloats), read);
}

TEST(Llama2c, SaysWhichRuleIsBroken) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
  test::expect_refused(
      {
          {"empty", "",
           "[llama2c] x.bin: byte 0: the file ends inside the header: 0 bytes left; expected 4"},
          {"dim", file_of({.dim = 0}, kFloats), "dim = 0; expected at least 1"},
          {"hidden_dim", file_of({.hidden = -3}, kFloats), "hidden_dim = -3; expected at least 1"},
          {"n_layers", file_of({.layers = 0}, kFloats), "n_layers = 0"},
          {"n_heads", file_of({.heads = 0}, kFloats), "n_heads = 0"},
          {"n_kv_heads", file_of({.kv_heads = -1}, kFloats), "n_kv_heads = -1"},
          {"vocab_size", file_of({.vocab = 0}, kFloats), "vocab_size = 0"},
          {"vocab_size minimal", file_of({.vocab = kMin}, kFloats), "its sizes imply"},
          {"seq_len", file_of({.seq = 0}, kFloats), "seq_len = 0"},
          {"heads of dim", file_of({.heads = 3}, kFloats), "n_heads = 3 does not divide dim = 4"},
          {"kv heads", file_of({.heads = 2, .kv_heads = 3}, kFloats),
           "n_kv_heads = 3 does not divide n_heads = 2"},
          {"odd heads", file_of({.heads = 4}, kFloats),
           "heads of 1 numbers (dim 4 / n_heads 4); expected an even size"},
          {"overflow",
           file_of({.dim = kMax - 1,
                    .hidden = kMax,
                    .layers = kMax,
                    .heads = 1,
                    .vocab = kMax,
                    .seq = kMax},
                   0),
           "implies more than 2^63 bytes"},
          {"too long", file_of({}, kFloats + 1),
           "884 bytes after the header of 28; its sizes imply 880"},
          {"head missing", file_of({.vocab = -5}, kFloats),
           "880 bytes after the header of 28; its sizes imply 960"},
      },
      read);
}

// Sizes: SOURCES.md of the test data and the file's length, 1,056,540 bytes.
TEST(Llama2cRealFile, Stories260K) {
  const char* data = std::getenv("TESSERA_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "TESSERA_TEST_DATA is not set";
  const Llama2cFile file =
      open_llama2c(std::filesystem::path(data) / "stories260k/stories260K.bin");
  EXPECT_EQ(file.header.dim, 64);
  EXPECT_EQ(file.header.n_layers, 5);
  EXPECT_EQ(file.header.n_heads, 8);
  EXPECT_EQ(file.header.n_kv_heads, 4);
  EXPECT_EQ(file.header.vocab_size, 512);
  EXPECT_TRUE(file.header.tied_head);
  // the frequency tables follow all weights: were the order wrong, cos(0) = 1 would not lie here
  const TensorView& cosines = file.tensors.at("freq_cis_real");
  const TensorView& sines = file.tensors.at("freq_cis_imag");
  EXPECT_EQ(cosines.shape, (Shape{512, 4}));
  EXPECT_EQ(first_of(cosines), 1.0f);
  EXPECT_EQ(first_of(sines), 0.0f);
}

}  // namespace
}  // namespace tessera::format::llama2c_test
