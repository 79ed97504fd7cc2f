#include "tessera/text/tokenizer_files/score_file.h"

#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/testing.h"

namespace tessera::text::score_file_test {
namespace {

using Ids = std::vector<int32_t>;

class FileBuilder {
 public:
  FileBuilder() {
    put<int32_t>(kLongest);
    token("<unk>");
    token("\n<s>\n");
    token("\n</s>\n");
    for (int byte = 0; byte < 256; ++byte) token(fmt::format("<0x{:02X}>", byte));
  }
  void token(const std::string& text, float score = 0) {
    put(score);
    put(static_cast<int32_t>(text.size()));
    bytes_ += text;
  }
  template <class Value>
  void put(Value value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  const std::string& bytes() const { return bytes_; }

 private:
  static constexpr int32_t kLongest = 8;
  std::string bytes_;
};

Tokenizer load(const std::string& bytes, int32_t vocab_size = 0) {
  return tokenizer_from_scores(std::as_bytes(std::span(bytes)), "f", vocab_size);
}

std::string error_of(const std::string& bytes, int32_t vocab_size = 0) {
  return test::error_of([&] { load(bytes, vocab_size); });
}

std::string small_file() {
  FileBuilder file;
  for (const auto& [text, score] : {std::pair(" ", -9.f),
                                    {"a", -9.f},
                                    {"b", -9.f},
                                    {" a", -3.f},
                                    {"ab", -1.f},
                                    {" ab", -2.f},
                                    {"ba", -1.f},
                                    {"<", -9.f}})
    file.token(text, score);
  return file.bytes();
}

TEST(ScoreFile, MergesTheHighestScoreFirstAndTheLeftmostOfEquals) {
  const Tokenizer t = load(small_file(), 267);
  EXPECT_EQ(t.encode("ab"), (Ids{1, 264}));  // " ab": ab (-1) comes before " a" (-3)
  EXPECT_EQ(t.encode("aba", {false, false}), (Ids{264, 260}));  // ab and ba tie: the left one
  EXPECT_EQ(t.encode("é", {false, false}), (Ids{259, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(t.encode("", {false, false}), Ids{});
  EXPECT_EQ(t.bos(), 1);
  EXPECT_EQ(t.eos(), 2);
}

TEST(ScoreFile, DropsTheSpaceAfterBeginOfText) {
  const Tokenizer t = load(small_file());
  EXPECT_EQ(t.decode(Ids{1, 264, 264}), "ab ab");
  EXPECT_EQ(t.decode(Ids{264, 264}), " ab ab");
  EXPECT_EQ(t.decode(t.encode("aé b")), "aé b");
  StreamDecoder decoder(t);
  EXPECT_EQ(decoder.push(3 + 0xC3), "");
  EXPECT_EQ(decoder.push(3 + 0xA9), "");
  EXPECT_EQ(decoder.push(260), "éa");
  EXPECT_EQ(decoder.push(3 + 0xC3), "");
  EXPECT_EQ(decoder.finish(), "�");
}

TEST(ScoreFile, RefusesBrokenFiles) {
  const std::string good = small_file();
  EXPECT_EQ(error_of(good, 267), "");
  EXPECT_EQ(error_of(good, 266), "[f] 9 bytes follow after 266 tokens");
  EXPECT_EQ(error_of(good, 300), "[f] 267 tokens; expected 300");
  for (size_t cut = 0; cut < good.size(); cut += cut < 40 ? 1 : 37) {
    const std::string error = error_of(good.substr(0, cut), 267);
    EXPECT_TRUE(error.starts_with("[f] ")) << cut << error;
  }
  FileBuilder twice;
  twice.token("a");
  twice.token("a");
  EXPECT_EQ(error_of(twice.bytes()), "[f] token \"a\" has two ids, 259 and 260");
  FileBuilder invalid;
  invalid.token("\xFF");
  EXPECT_EQ(error_of(invalid.bytes()), "[f] token 259 is not valid UTF-8");
  FileBuilder negative;
  negative.put<float>(0);
  negative.put<int32_t>(-1);
  EXPECT_EQ(error_of(negative.bytes()), "[f] token 259 has length -1; expected 0 to 8");
}

TEST(ScoreFile, RealVocabulary) {
  const char* data = std::getenv("TESSERA_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "TESSERA_TEST_DATA is not set";
  const Tokenizer t =
      load_tokenizer(std::filesystem::path(data) / "stories260k" / "tok512.bin", 512);
  EXPECT_EQ(t.vocab_size(), 512);
  const std::string text = "Once upon a time, there was a little girl named Lily.";
  // llama2.c's encode() of the first words
  EXPECT_EQ(t.encode("Once upon a time"), (Ids{1, 403, 407, 261, 378}));
  EXPECT_EQ(t.decode(t.encode(text)), text);
}

}  // namespace
}  // namespace tessera::text::score_file_test
