// The merges and ids are those of the `tokenizers` library 0.23.
#include "tessera/text/tokenizer/train_bpe.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/sha256.h"
#include "tessera/base/text_input.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"

namespace tessera::text::train_bpe_test {
namespace {

std::vector<std::string> merges_of(const spec::Json& tokenizer) {
  std::vector<std::string> merges;
  for (const auto& pair : tokenizer["model"]["merges"])
    merges.push_back(pair[0].get<std::string>() + " " + pair[1].get<std::string>());
  return merges;
}

Tokenizer loaded(const spec::Json& json) {
  return tokenizer_from_json(json.dump(), "learned");
}

WordCounts some_words() {
  WordCounts counts;
  for (const char* text :
       {"low low low low low lower lower newest newest newest newest newest newest widest widest "
        "widest",
        "a-b a-b, größe größe aaaa aaaa aaaa", "\n\n\n  x  x\n"})
    counts.add(text);
  return counts;
}

TEST(LearnBpe, ThePairThatStandsMostOftenIsNext) {
  const spec::Json json = train_bpe(some_words(), {.vocabulary = 400, .special = {"<pad>", "<s>"}});
  EXPECT_EQ(merges_of(json),
            (std::vector<std::string>{
                "a a",      "e s",    "es t",     "l o",     "lo w",   "e w",      "n ew",
                "Ġ low",    "Ġ new",  "Ġnew est", "d est",   "i dest", "w idest",  "Ġ aa",
                "Ġ widest", "Ġaa aa", "e r",      "g r",     "¶ Ã",    "Ã ¶Ã",     "Ċ Ċ",
                "Ġ x",      "Ġ gr",   "Ł e",      "Ġlow er", "Ã¶Ã Łe", "Ġgr Ã¶ÃŁe"}));
  const Tokenizer tokenizer = loaded(json);
  const std::string text = "lowest größte aaaaa";
  const auto ids = tokenizer.encode(text);
  EXPECT_EQ(ids, (std::vector<int32_t>{262, 260, 280, 277, 255, 85, 70, 273, 66}));
  EXPECT_EQ(tokenizer.decode(ids), text);
  // what was never seen too
  const std::string other = "\x01 日本 <s> zzz";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(other)), other);
}

TEST(LearnBpe, OfABookTheMergesAreThoseOfTheLibrary) {
  WordCounts counts;
  std::istringstream book(read_text_input(TESSERA_SOURCE_DIR "/examples/data/shakespeare.txt"));
  for (std::string line; std::getline(book, line);) counts.add(line + "\n");
  const spec::Json json = train_bpe(counts, {.vocabulary = 2000, .special = {"<pad>", "<s>"}});
  std::string all;
  for (const std::string& merge : merges_of(json)) all += (all.empty() ? "" : "\n") + merge;
  EXPECT_EQ(sha256(all), "cfdccb8c51b2215d6fe756bcce0dae91008168ea7e371ebf17de32580183aa32");
  EXPECT_EQ(loaded(json).encode("Wherefore art thou Romeo? Größe 42!\n"),
            (std::vector<int32_t>{746, 550, 744, 344, 1167, 32, 480, 83, 129, 116, 129, 255, 70,
                                  222, 21, 19, 2, 200}));
}

TEST(LearnBpe, NoPairBecomesASpecialToken) {
  WordCounts counts;
  for (int i = 0; i < 5; ++i) counts.add("<s><s><s>");
  const Tokenizer tokenizer = loaded(train_bpe(counts, {.vocabulary = 300, .special = {"<s>"}}));
  for (const int32_t id : tokenizer.encode("<s><s>", {.parse_special = false})) EXPECT_NE(id, 0);
  EXPECT_EQ(tokenizer.encode("<s>", {.parse_special = true}), (std::vector<int32_t>{0}));
}

TEST(LearnBpe, WhatHasNoRoomIsRefused) {
  const WordCounts counts = some_words();
  EXPECT_THROW(train_bpe(counts, {.vocabulary = 256, .special = {"<s>"}}), Error);
  EXPECT_THROW(train_bpe(counts, {.special = {""}}), Error);
  EXPECT_THROW(train_bpe(counts, {.special = {"<s>", "<s>"}}), Error);
  EXPECT_THROW(train_bpe(counts, {.special = {"a"}}), Error);
  EXPECT_THROW(train_bpe(counts, {.special = {"\xFF"}}), Error);
  // bytes alone
  EXPECT_TRUE(merges_of(train_bpe(counts, {.vocabulary = 256})).empty());
  EXPECT_TRUE(merges_of(train_bpe(WordCounts(), {})).empty());
  CancelToken cancel;
  cancel.request();
  EXPECT_THROW(train_bpe(counts, {}, &cancel), Error);
}

}  // namespace
}  // namespace tessera::text::train_bpe_test
