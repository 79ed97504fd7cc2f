#include "tessera/train/data/token_cache.h"

#include "tessera/train/train_testing.h"

namespace tessera::train::token_cache_test {
namespace {

std::string text_of(const TokenSplit& split) {
  std::vector<int64_t> tokens(static_cast<size_t>(split.tokens()));
  split.read(0, tokens);
  return {tokens.begin(), tokens.end()};
}

TokenData prepare(const TextData& data, const std::filesystem::path& cache, int64_t vocab = 256) {
  return prepare_tokens(data, open_tokenizer({data}), vocab, cache);
}

TEST(TokenCache, LastPartOfTheBytesIsForValidation) {
  const TemporaryFolder folder;
  const std::string a = counting_text(70), b = counting_text(31);
  TextData data{.train = {folder.write("a", a), folder.write("b", b)}, .valid_fraction = 0.25};
  const TokenData split = prepare(data, folder / "cache");
  const std::string all = a + b;  // 101 bytes, cut at floor(75.75)
  EXPECT_EQ(text_of(split.train), all.substr(0, 75));
  EXPECT_EQ(text_of(split.valid), all.substr(75));
  EXPECT_EQ(split.train.documents(), 2);
  EXPECT_EQ(split.valid.text_bytes(), 26);
}

TEST(TokenCache, BuiltOncePerContent) {
  const TemporaryFolder folder;
  TextData data{.train = {folder.write("a", "hello world")}};
  const TokenData first = prepare(data, folder / "cache");
  const auto shard = folder / "cache" / first.key.substr(0, 16) / "train.tokens" / "00000.bin";
  const auto written = std::filesystem::last_write_time(shard);
  EXPECT_EQ(prepare(data, folder / "cache").key, first.key);
  EXPECT_EQ(std::filesystem::last_write_time(shard), written);
  // another content is another entry; a damaged entry is made again
  folder.write("a", "hello there");
  const TokenData second = prepare(data, folder / "cache");
  EXPECT_NE(second.key, first.key);
  EXPECT_EQ(text_of(second.train), "hello there");
  std::filesystem::resize_file(
      folder / "cache" / second.key.substr(0, 16) / "train.tokens" / "00000.bin", 3);
  EXPECT_EQ(text_of(prepare(data, folder / "cache").train), "hello there");
}

std::string numbers(const std::vector<uint32_t>& ids, size_t width) {
  std::string out;
  for (const uint32_t id : ids)
    for (size_t b = 0; b < width; ++b) out += static_cast<char>(id >> (8 * b));
  return out;
}

TEST(TokenCache, FilesOfTokens) {
  const TemporaryFolder folder;
  const auto ids_of = [](const TokenSplit& split) {
    std::vector<int64_t> ids(static_cast<size_t>(split.tokens()));
    split.read(0, ids);
    return ids;
  };
  TextData data{.train = {folder.write("a.bin", numbers({5, 300, 0, 7, 10, 8}, 2)),
                          folder.write("b.bin", numbers({1, 2, 10}, 2))},
                .format = DataFormat::tokens,
                .document_separator = "\n"};
  const TokenData all = prepare(data, folder / "cache", 301);
  EXPECT_EQ(ids_of(all.train), (std::vector<int64_t>{5, 300, 0, 7, 10, 8, 1, 2, 10}));
  EXPECT_EQ(all.train.documents(), 3);
  EXPECT_EQ(all.train.document(1), (std::pair<int64_t, int64_t>{5, 1}));
  EXPECT_EQ(all.train.text_bytes(), 0);
  // what is held out begins at a token
  data.valid_fraction = 0.3;
  const TokenData split = prepare(data, folder / "cache", 301);
  EXPECT_EQ(ids_of(split.valid), (std::vector<int64_t>{1, 2, 10}));
  EXPECT_EQ(split.train.tokens(), 6);
  // more ids than 16 bits have
  data.valid_fraction = 0;
  data.train = {folder.write("c.bin", numbers({70000, 1}, 4))};
  EXPECT_EQ(ids_of(prepare(data, folder / "cache", 70001).train), (std::vector<int64_t>{70000, 1}));
  expect_error(ErrorKind::file, "token 0 is 70000; expected 0 to 69999",
               [&] { prepare(data, folder / "cache", 70000); });
  data.train = {folder.write("d.bin", "abc")};
  expect_error(ErrorKind::file, "3 bytes; expected a multiple of 2: a vocabulary of 301",
               [&] { prepare(data, folder / "cache", 301); });
}

TEST(TokenCache, JsonLines) {
  const TemporaryFolder folder;
  TextData data{.train = {folder.write("a.jsonl",
                                       "{\"id\": 1, \"text\": \"caf\\u00e9\"}\n\n{\"text\": "
                                       "\"\"}\r\n{\"text\": \"two\", \"x\": [1]}")},
                .format = DataFormat::jsonl};
  const TokenData split = prepare(data, folder / "cache");
  EXPECT_EQ(text_of(split.train), "caf\xC3\xA9two");
  EXPECT_EQ(split.train.documents(), 2);
  EXPECT_EQ(split.train.document_end(0), 5);

  for (const char* bad :
       {"{\"text\": 3}", "{\"txt\": \"a\"}", "[1", "{\"text\": \"\\ud800\"}", "3"}) {
    folder.write("a.jsonl", std::string("{\"text\": \"fine\"}\n") + bad);
    expect_error(ErrorKind::file, "a.jsonl: line 2: ", [&] { prepare(data, folder / "cache"); });
  }
  folder.write("a.jsonl", std::string(100'000, '['));
  expect_error(ErrorKind::file, "line 1: ", [&] { prepare(data, folder / "cache"); });
}

TEST(TokenCache, ErrorsAndNoRemains) {
  const TemporaryFolder folder;
  TextData data{.train = {folder.write("a", "")}};
  expect_error(ErrorKind::input, "the file is empty", [&] { prepare(data, folder / "cache"); });
  folder.write("a", "x");
  expect_error(ErrorKind::input, "the train split has 1 tokens",
               [&] { prepare(data, folder / "cache"); });
  data.train = {(folder / "absent").string()};
  expect_error(ErrorKind::file, "absent", [&] { prepare(data, folder / "cache"); });
  data.train = {folder.write("b", "hello")};
  expect_error(ErrorKind::input, "spec has a vocabulary of 105",
               [&] { prepare(data, folder / "other", 105); });
  EXPECT_TRUE(!std::filesystem::exists(folder / "other") ||
              std::filesystem::is_empty(folder / "other"));
  data.document_separator = "<|end|>";
  expect_error(ErrorKind::spec, "\"<|end|>\" is not a token",
               [&] { prepare(data, folder / "cache"); });
  data.document_separator = "\n";
  EXPECT_EQ(text_of(prepare(data, folder / "cache").train), "hello\n");
}

}  // namespace
}  // namespace tessera::train::token_cache_test
