// The longest token that begins a text, again and again, and how GGUF files write such tokens.
// Ids that llama.cpp gives stand in tests/golden/families/rwkv_cpp (convert/families_test.cpp).
#include "tessera/text/tokenizer/longest_match_model.h"

#include <gtest/gtest.h>

#include <random>

#include "tessera/base/testing.h"
#include "tessera/text/tokenizer_files/gguf_tokenizer.h"

namespace tessera::text::longest_match_test {
namespace {

using test::error_of;
using Ids = std::vector<int32_t>;

VocabularyPointer vocabulary(const std::vector<std::string>& tokens) {
  std::vector<std::pair<std::string, int64_t>> entries;
  for (size_t id = 0; id < tokens.size(); ++id)
    entries.emplace_back(tokens[id], static_cast<int64_t>(id));
  return std::make_shared<Vocabulary>(std::move(entries), "t");
}

Ids encoded(const Model& model, std::string_view text) {
  const Piece piece{text};
  Ids ids;
  model.encode({&piece, 1}, ids);
  return ids;
}

TEST(LongestMatch, LongestFirstThenTheRest) {
  const auto model = make_longest_match_model(
      vocabulary({"?", "a", "b", "ab", "abcab", "c", "\xE4\xBD", "\xA0"}), 0, "t");
  EXPECT_EQ(encoded(*model, "abcab"), Ids{4});
  // the walk goes on to "abca", where no token ends, and back to the longest that did
  EXPECT_EQ(encoded(*model, "abcaabca"), (Ids{3, 5, 1, 3, 5, 1}));
  // tokens end inside characters; what begins none is unknown byte by byte
  EXPECT_EQ(encoded(*model, "\xE4\xBD\xA0"), (Ids{6, 7}));
  EXPECT_EQ(encoded(*model, "x\xE4\xBD"), (Ids{0, 6}));
  EXPECT_EQ(encoded(*model, "\xE4x"), (Ids{0, 0}));
}

TEST(LongestMatch, IsWhatAComparisonWithEveryTokenGives) {
  std::mt19937 random(3);
  const auto text = [&](size_t size) {
    std::string made;
    while (made.size() < size) made += static_cast<char>(0x7E + random() % 4);
    return made;
  };
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (size_t size = 2; size < 8; ++size)
    for (size_t n = 0; n < 3 * size; ++n)
      if (const std::string token = text(size);
          std::count(tokens.begin(), tokens.end(), token) == 0)
        tokens.push_back(token);
  const auto model = make_longest_match_model(vocabulary(tokens), kNoToken, "t");
  const std::string whole = text(2000);
  Ids expected;
  for (std::string_view rest = whole; !rest.empty();) {
    size_t best = 0, longest = 0;
    for (size_t id = 0; id < tokens.size(); ++id)
      if (rest.starts_with(tokens[id]) && tokens[id].size() > longest)
        best = id, longest = tokens[id].size();
    expected.push_back(static_cast<int32_t>(best));
    rest.remove_prefix(longest);
  }
  EXPECT_EQ(encoded(*model, whole), expected);
}

TEST(LongestMatch, RefusesAVocabularyThatLacksAByte) {
  EXPECT_EQ(error_of([] { make_longest_match_model(vocabulary({"a"}), kNoToken, "t"); }),
            "[t] no unknown token, and none of the byte 0x00 alone; a text could not be encoded");
}

/// Ids 1 to 256 are the bytes, as RWKV's World vocabulary has them; 0 is special.
GgufTokenizerData world(const std::vector<std::string>& tokens) {
  GgufTokenizerData data;
  data.model = "rwkv";
  data.tokens = {"<s>"};
  for (int byte = 0; byte < 256; ++byte) {
    const bool plain = byte >= 0x20 && byte < 0x7F && byte != '\\';
    data.tokens.push_back(byte == '\t'   ? "\\t"
                          : byte == '\n' ? "\\n"
                          : byte == '\r' ? "\\r"
                          : byte == '\\' ? "\\\\"
                          : plain        ? std::string(1, static_cast<char>(byte))
                                         : fmt::format("\\x{:02x}", byte));
  }
  data.tokens.insert(data.tokens.end(), tokens.begin(), tokens.end());
  data.token_types.assign(data.tokens.size(), 1);
  data.token_types[0] = 3;
  data.bos_id = data.eos_id = 0;
  return data;
}

TEST(LongestMatch, TokensOfGgufFilesAreWrittenAsBytes) {
  const Tokenizer t =
      tokenizer_from_gguf(world({"\\n\\n", "\\xe4\\xbd", "it\\'s", "\\\\x41", " the"}), "g");
  EXPECT_EQ(t.encode("\n\n\n"), (Ids{257, 11}));
  EXPECT_EQ(t.encode("你"), (Ids{258, 0xA0 + 1}));
  EXPECT_EQ(t.encode("it's the"), (Ids{259, 261}));
  EXPECT_EQ(t.encode("\\x41A"), (Ids{260, 'A' + 1}));
  EXPECT_EQ(t.bytes_of(258), "\xE4\xBD");
  const std::string text("\0\t\r\n\\ caf\u00e9 \u4f60\u597d \U0001F600", 23);
  EXPECT_EQ(t.decode(t.encode(text)), text);
  // part of a character
  EXPECT_EQ(t.decode(Ids{258}), "\uFFFD");
}

TEST(LongestMatch, TextsSpellNeitherSpecialTokensNorRowsOfNone) {
  GgufTokenizerData data = world({"[PAD257]", "<tool\\>"});
  data.token_types[257] = 5;
  data.token_types[258] = 4;
  const Tokenizer t = tokenizer_from_gguf(data, "g");
  EXPECT_EQ(t.encode("<s>"), (Ids{'<' + 1, 's' + 1, '>' + 1}));
  EXPECT_EQ(t.encode("<s>", {false, true}), Ids{0});
  EXPECT_EQ(t.encode("[PAD257]").size(), 8u);
  EXPECT_EQ(t.encode("a<tool\\>"), (Ids{'a' + 1, 258}));  // found in any text, as it stands there
  EXPECT_EQ(t.vocab_size(), 259);
  EXPECT_EQ(t.decode(Ids{257}), "");
  // nothing stands around a text unless the file asks for it
  data.add_bos = true;
  EXPECT_EQ(tokenizer_from_gguf(data, "g").encode("a"), (Ids{0, 'a' + 1}));
}

TEST(LongestMatch, RefusesTokensThatAreNotWrittenSo) {
  const auto error = [](const std::string& token) {
    return error_of([&] { tokenizer_from_gguf(world({token}), "g"); });
  };
  EXPECT_EQ(error("a\\"), "[g] token 257 is \"a\\\"; expected a character after the last \\");
  for (const char* token : {"\\x", "\\x4", "\\x4g", "\\xAB"})
    EXPECT_EQ(error(token), fmt::format("[g] token 257 is \"{}\"; expected two digits 0-9, a-f "
                                        "after \\x",
                                        token));
  EXPECT_EQ(error("\\x61"), "[g] token \"a\" has two ids, 98 and 257");
}

}  // namespace
}  // namespace tessera::text::longest_match_test
