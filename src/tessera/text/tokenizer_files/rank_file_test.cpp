#include "tessera/text/tokenizer_files/rank_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/base64.h"
#include "tessera/base/testing.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text::rank_file_test {
namespace {

using test::expect_error;

/// The bytes, then some words, then pairs of rare bytes up to the number that Llama 3 has.
std::string llama3_ranks(const std::vector<std::string>& words, size_t n = 128'000) {
  std::string text;
  size_t rank = 0;
  const auto add = [&](const std::string& token) {
    text += base64(token) + ' ' + std::to_string(rank++) + '\n';
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const std::string& word : words) add(word);
  for (int i = 0; rank < n; ++i)
    add({'\xff', static_cast<char>(0x80 + i / 4096 % 64), static_cast<char>(0x80 + i / 64 % 64),
         static_cast<char>(0x80 + i % 64)});
  return text;
}

// "ab" has the lower rank: "abc" is ab + c, "bc" alone is one token. Words of the vocabulary stay
// whole.
TEST(RankFile, PairsMergeByRank) {
  const std::string text = llama3_ranks({"ab", "bc", "cd", "abcd", "hello", " hello"});
  EXPECT_TRUE(is_rank_file(text));
  const Tokenizer tokenizer =
      tokenizer_from_gguf(read_rank_file(text, "tokenizer.model"), "tokenizer.model");
  EXPECT_EQ(tokenizer.vocab_size(), 128'256);
  const auto ids = [&](const std::string& of) {
    std::vector<int32_t> found = tokenizer.encode(of);
    if (!found.empty() && found.front() == 128'000) found.erase(found.begin());
    return found;
  };
  EXPECT_EQ(ids("abc"), (std::vector<int32_t>{256, 'c'}));
  EXPECT_EQ(ids("bc"), (std::vector<int32_t>{257}));
  EXPECT_EQ(ids("abcd"), (std::vector<int32_t>{259}));
  EXPECT_EQ(ids("hello hello"), (std::vector<int32_t>{260, 261}));
  EXPECT_EQ(ids("xyz"), (std::vector<int32_t>{'x', 'y', 'z'}));
}

TEST(RankFile, SpecialTokensFollowTheLastRank) {
  const GgufTokenizerData data = read_rank_file(llama3_ranks({}), "tokenizer.model");
  EXPECT_EQ(data.tokens.at(128'000), "<|begin_of_text|>");
  EXPECT_EQ(data.tokens.at(128'001), "<|end_of_text|>");
  EXPECT_EQ(data.tokens.at(128'006), "<|start_header_id|>");
  EXPECT_EQ(data.tokens.at(128'009), "<|eot_id|>");
  EXPECT_EQ(data.tokens.at(128'255),
            "<|reserved_special_token_247|>");  // as Llama 3.1's tokenizer.json
  EXPECT_EQ(data.bos_id, 128'000);
  EXPECT_EQ(data.eos_id, 128'001);
  EXPECT_EQ(data.eot_id, 128'009);
}

TEST(RankFile, MalformedFilesAreRefused) {
  const std::string a = base64("a"), b = base64("b");
  const std::pair<std::string, const char*> cases[] = {
      {a + " 0\n" + b + " x\n", "token 1: malformed line"},
      {a + " 0\n!!!! 1\n", "token 1: malformed line"},
      {a + " 0\n" + b + " 2\n", "token 1 has rank 2; expected ranks in order"},
      {a + " 0\n" + a + " 1\n", "token 1 is that of rank 0 again"},
      {a + " 0\n" + b + " 1\n",
       "2 tokens with ranks; how their texts are split is known for 128000"}};
  for (const auto& [text, message] : cases)
    expect_error(ErrorKind::file, message, [&] { read_rank_file(text, "tokenizer.model"); });
  for (const char* other :
       {"", "{\"model\": 1}", "[PAD]\n[UNK]\n", "hello 1\n", "YQ== -1\n", "YQ==\n"})
    EXPECT_FALSE(is_rank_file(other)) << other;
}

}  // namespace
}  // namespace tessera::text::rank_file_test
