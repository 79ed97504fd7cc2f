// Texts as a model that judges them reads them, and where their tokens stand.
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/text/tokenizer/answer_windows.h"
#include "tessera/text/tokenizer/byte_tokenizer.h"
#include "tessera/text/tokenizer/text_pair.h"
#include "tessera/text/tokenizer/token_spans.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/tokenizer_files/tokenizer_json_parts.h"
#include "tessera/text/tokenizer_files/vocab_file.h"

namespace tessera::text::text_pair_test {
namespace {

using Ids = std::vector<int64_t>;

/// [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4
const Tokenizer& bert() {
  static const Tokenizer tokenizer = tokenizer_from_vocab(
      "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\n!\na\nb\nc\nwho\n?\n", "v");
  return tokenizer;
}

TEST(TextPair, HasTheTokensAroundAndBetween) {
  const ClassifierInput one = classifier_input(bert(), "a b", std::nullopt, 0);
  EXPECT_EQ(one.ids, (Ids{2, 9, 10, 3}));
  EXPECT_EQ(one.second, 4u);
  EXPECT_EQ(one.first_begin, 1u);
  const ClassifierInput two = classifier_input(bert(), "a b", "c", 0);
  EXPECT_EQ(two.ids, (Ids{2, 9, 10, 3, 11, 3}));
  EXPECT_EQ(types_of(two), (Ids{0, 0, 0, 0, 1, 1}));
  EXPECT_FALSE(two.cut);
  EXPECT_EQ(tokens_around(bert(), false), 2);
  EXPECT_EQ(tokens_around(bert(), true), 3);
}

TEST(TextPair, CutsTheLongerTextFirst) {
  const ClassifierInput pair = classifier_input(bert(), "a a a a a", "b b b", 9);
  EXPECT_EQ(pair.ids, (Ids{2, 9, 9, 9, 3, 10, 10, 10, 3}));
  EXPECT_TRUE(pair.cut);
  EXPECT_EQ(classifier_input(bert(), "a a a a a", "b b b", 7).ids, (Ids{2, 9, 9, 3, 10, 10, 3}));
  EXPECT_EQ(classifier_input(bert(), "a", "b b b b b", 7).ids, (Ids{2, 9, 3, 10, 10, 10, 3}));
  EXPECT_EQ(classifier_input(bert(), "a b c", std::nullopt, 4).ids, (Ids{2, 9, 10, 3}));
  test::expect_error(ErrorKind::input, "expected at least 5",
                     [] { classifier_input(bert(), "a", "b", 4); });
  test::expect_error(ErrorKind::input, "no token",
                     [] { classifier_input(bert(), "", std::nullopt, 0); });
}

/// bert() as a tokenizer.json and a tokenizer_config.json that say where texts are truncated
Tokenizer truncating(const spec::Json& direction, const std::string& config) {
  spec::Json file = empty_tokenizer_json(spec::Json::array());
  file["model"] = {{"type", "WordPiece"},
                   {"vocab", {{"[UNK]", 0}, {"a", 1}, {"b", 2}, {"c", 3}, {"d", 4}}},
                   {"unk_token", "[UNK]"},
                   {"continuing_subword_prefix", "##"},
                   {"max_input_chars_per_word", 100}};
  file["pre_tokenizer"] = {{"type", "Whitespace"}};
  file["truncation"] = {{"max_length", 128}, {"strategy", "LongestFirst"}, {"stride", 0}};
  if (!direction.is_null()) file["truncation"]["direction"] = direction;
  return tokenizer_from_json(file.dump(), "test", {config});
}

// truncation_side of tokenizer_config.json goes before the direction of tokenizer.json, as in
// transformers 5
TEST(TextPair, CutsTheSideThatTheTokenizerNames) {
  const auto ids = [](const spec::Json& direction, const std::string& config) {
    return classifier_input(truncating(direction, config), "a b c d", std::nullopt, 2).ids;
  };
  const std::string left = R"({"truncation_side": "left"})",
                    right = R"({"truncation_side": "right"})";
  EXPECT_EQ(ids(nullptr, ""), (Ids{1, 2}));
  EXPECT_EQ(ids("Right", ""), (Ids{1, 2}));
  EXPECT_EQ(ids("Left", ""), (Ids{3, 4}));
  EXPECT_EQ(ids(nullptr, left), (Ids{3, 4}));
  EXPECT_EQ(ids("Right", left), (Ids{3, 4}));
  EXPECT_EQ(ids("Left", right), (Ids{1, 2}));
  const ClassifierInput cut =
      classifier_input(truncating(nullptr, left), "a b c d", std::nullopt, 3);
  EXPECT_EQ(cut.first_dropped, 1u);
  EXPECT_EQ(cut.first_length, 3u);
  test::expect_error(ErrorKind::file, "\"truncation_side\" is \"middle\"; expected \"left\"",
                     [&] { ids(nullptr, R"({"truncation_side": "middle"})"); });
  test::expect_error(ErrorKind::file, "truncation] direction is an integer", [&] { ids(3, ""); });
}

TEST(TextPair, PutsALineBetweenTextsThatNothingParts) {
  const Tokenizer bytes = byte_tokenizer();
  const ClassifierInput pair = classifier_input(bytes, "ab", "c", 0);
  EXPECT_EQ(pair.ids, (Ids{'a', 'b', '\n', 'c'}));
  EXPECT_EQ(pair.second, 3u);
  EXPECT_EQ(classifier_input(bytes, "ab", std::nullopt, 0).ids, (Ids{'a', 'b'}));
}

std::vector<std::string> parts(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::string> out;
  for (const TokenSpan& span : token_spans(tokenizer, text))
    out.push_back(text.substr(span.begin, span.end - span.begin));
  return out;
}

TEST(TokenSpans, ByDecodingOrByWords) {
  using Parts = std::vector<std::string>;
  EXPECT_EQ(parts(byte_tokenizer(), "a b"), (Parts{"a", " ", "b"}));
  // what BERT makes lower case is found by the words around it
  EXPECT_EQ(parts(bert(), "UnAffable! a"),
            (Parts{"UnAffable", "UnAffable", "UnAffable", "!", "a"}));
}

TEST(TokenSpans, BytesOfOneCharacterAllHaveIt) {
  const auto spans = token_spans(byte_tokenizer(), "aé");
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[1].begin, 1u);
  for (const size_t byte : {1, 2}) EXPECT_EQ(spans[byte].end, 3u);
}

TEST(WordTokens, AreThoseOfTheWordWithinAText) {
  const WordTokens words(bert());
  EXPECT_EQ(words.of("Unaffable", true), (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(words.of("a", false), (std::vector<int32_t>{9}));
  // bytes: the space between two words is the second one's
  EXPECT_EQ(WordTokens(byte_tokenizer()).of("a", false), (std::vector<int32_t>{' ', 'a'}));
  EXPECT_EQ(WordTokens(byte_tokenizer()).of("a", true), (std::vector<int32_t>{'a'}));
}

TEST(AnswerWindows, ShareSomeOfTheContext) {
  const auto windows = answer_windows(bert(), "who ?", "a b c a b", 8, 1);
  // [CLS] who ? [SEP] and [SEP] leave 3 tokens, of which 2 are new in every window
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows[0].ids, (Ids{2, 12, 13, 3, 9, 10, 11, 3}));
  EXPECT_EQ(windows[1].ids, (Ids{2, 12, 13, 3, 11, 9, 10, 3}));
  EXPECT_EQ(windows[1].context_begin, 4u);
  EXPECT_EQ(windows[1].context[0].begin, 4u);
  EXPECT_EQ(windows[1].context[2].end, 9u);
  EXPECT_EQ(answer_windows(bert(), "who ?", "a b c", 8, 1).size(), 1u);
  test::expect_error(ErrorKind::input, "leaves 1 of 6 for the context",
                     [] { answer_windows(bert(), "who ?", "a b c", 6, 1); });
}

}  // namespace
}  // namespace tessera::text::text_pair_test
