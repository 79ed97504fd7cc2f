#include "tessera/train/data/data_file.h"

#include <cmath>

#include "tessera/train/data/label_examples.h"
#include "tessera/train/data/token_cache.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::data_file_test {
namespace {

using namespace std::string_literals;

class DataFiles : public testing::Test {
 protected:
  std::vector<Json> objects(const std::string& content) {
    const DataFile file(folder_.write("a.jsonl", content));
    std::vector<Json> out;
    wheres_.clear();
    for_each_object(file, [&](const ObjectText& object) {
      out.push_back(parse_object(object));
      wheres_.push_back(object.where.substr(object.where.rfind('/') + 1));
      EXPECT_EQ(std::string_view(content).substr(object.offset, object.text.size()), object.text);
    });
    return out;
  }
  void refuses(const std::string& content, const std::string& what) {
    expect_error(ErrorKind::file, what, [&] { objects(content); });
  }
  std::string tokens_of(const std::string& content, DataFormat format) {
    TextData data{.train = {folder_.write("t", content)}, .format = format};
    const TokenData tokens = prepare_tokens(data, open_tokenizer({data}), 256, folder_ / "cache");
    notes_ = tokens.notes;
    std::vector<int64_t> ids(static_cast<size_t>(tokens.train.tokens()));
    tokens.train.read(0, ids);
    std::string text(ids.begin(), ids.end());
    return text;
  }
  TemporaryFolder folder_;
  std::vector<std::string> wheres_, notes_;
};

const std::string kMark = "\xEF\xBB\xBF";

TEST_F(DataFiles, LinesAndListsHoldTheSameObjects) {
  const std::vector<Json> want = {json_of(R"({"a": "x], y"})"), json_of(R"({"b": [1, {"c": 2}]})")};
  EXPECT_EQ(objects("{\"a\": \"x], y\"}\r\n\n{\"b\": [1, {\"c\": 2}]}"), want);
  EXPECT_EQ(wheres_, (std::vector<std::string>{"a.jsonl: line 1", "a.jsonl: line 3"}));
  EXPECT_EQ(objects(kMark + "{\"a\": \"x], y\"}\n{\"b\": [1, {\"c\": 2}]}\n"), want);
  EXPECT_EQ(objects("[{\"a\": \"x], y\"},{\"b\": [1, {\"c\": 2}]}]"), want);
  EXPECT_EQ(objects(kMark + "\n [\n  {\n \"a\": \"x], y\"}, \n{\"b\": [1, {\"c\": 2}]}\n]\n"),
            want);
  EXPECT_EQ(wheres_, (std::vector<std::string>{"a.jsonl: line 3", "a.jsonl: line 5"}));
  EXPECT_EQ(objects("[ ]").size(), 0u);
  EXPECT_EQ(objects("[{\"q\": \"\\\"]\\\\\"}]")[0]["q"], "\"]\\");
}

TEST_F(DataFiles, WhatIsNoListOfObjectsIsSaid) {
  refuses("[{}, {}", "a.jsonl: line 1: a list that does not end");
  refuses("[{},\n]", "line 2: found the end of the list after a comma");
  refuses("[{},,{}]", "line 1: found a comma; expected an object");
  refuses("[{}]\n{}", "line 2: text after the list");
  refuses("[1]", "line 1: found an integer; expected an object");
  refuses("{\"a\": 1}\n{\"a\": }\n", "a.jsonl: line 2: byte ");
  refuses("[\"\xFF\"]", "0xff, which is not UTF-8");
}

TEST_F(DataFiles, NumbersThatPythonWritesAreNotFinite) {
  const Json one =
      objects(R"({"text": "NaN \" Infinity", "a": NaN, "b": [-Infinity, Infinity]})")[0];
  EXPECT_EQ(one["text"], "NaN \" Infinity");
  EXPECT_TRUE(std::isnan(one["a"].get<double>()));
  EXPECT_EQ(one["b"][0].get<double>(), -INFINITY);
  EXPECT_EQ(one["b"][1].get<double>(), INFINITY);
  EXPECT_EQ(found_kind(one["a"]), "NaN");
  EXPECT_EQ(found_kind(one["b"][0]), "infinite");
  EXPECT_EQ(found_kind(Json(1.5)), "a number");
  refuses("{\"a\": NaNs}", "line 1: byte ");
}

TEST_F(DataFiles, OtherEncodingsAreNamed) {
  const std::pair<std::string, const char*> cases[] = {
      {"\xFF\xFE{\0}\0"s,
       "a.jsonl: UTF-16 by its byte order mark; expected a text in UTF-8 (iconv"},
      {"\xFE\xFF\0{\0}"s, "UTF-16 by its byte order mark"},
      {"\xFF\xFE\0\0{\0\0\0"s, "UTF-32 by its byte order mark"},
      {"{\0}\0"s, "UTF-16 (little-endian)"},
      {"\0{\0}"s, "UTF-16 (big-endian)"},
      {"\x1F\x8B\x08"s, "compressed (gzip)"},
      {"PAR1 and so on"s, "Parquet; expected a text in UTF-8 (to_json()"}};
  for (const auto& [content, what] : cases) refuses(content, what);
}

TEST_F(DataFiles, EveryKindOfDataReadsThemAlike) {
  EXPECT_EQ(tokens_of(kMark + "caf\xC3\xA9", DataFormat::text), "caf\xC3\xA9");
  EXPECT_EQ(tokens_of(kMark + "{\"text\": \"ab\", \"n\": NaN}", DataFormat::jsonl), "ab");
  EXPECT_EQ(tokens_of("[{\"text\": \"ab\"}, {\"text\": \"cd\"}]", DataFormat::jsonl), "abcd");
  EXPECT_TRUE(notes_.empty());
  expect_error(ErrorKind::file, "t: line 1: \"text\" is null; expected a string",
               [&] { tokens_of("{\"text\": null}", DataFormat::jsonl); });
  expect_error(ErrorKind::file, "t: UTF-16 by its byte order mark",
               [&] { tokens_of("\xFF\xFE{\0}\0"s, DataFormat::jsonl); });
  // bytes are a text of the tokenizer of bytes, which is said
  EXPECT_EQ(tokens_of("\xFF\xFEh\0i\0"s, DataFormat::text), "\xFF\xFEh\0i\0"s);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("no UTF-8 text: UTF-16 by its byte order mark"), std::string::npos);
  EXPECT_EQ(tokens_of("a\nb\xFF", DataFormat::text), "a\nb\xFF");
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("no UTF-8 text: line 2: byte 4 of the file is 0xff"), std::string::npos)
      << notes_[0];

  LabelData data;
  const auto texts = [&](const char* name, const std::string& content) {
    data.train = {folder_.write(name, content)};
    return read_texts(data, LabelSplit::train, LabelOf::one_class);
  };
  EXPECT_EQ(texts("l.tsv", kMark + "text\tlabel\nx\ty\n").at(0).labels.at(0), "y");
  EXPECT_EQ(texts("l.csv", kMark + "text,label\nx,y\n").at(0).text, "x");
  EXPECT_EQ(texts("l.jsonl", "{\"text\": \"x\", \"label\": 1, \"s\": NaN}").at(0).labels.at(0),
            "1");
  expect_error(ErrorKind::file, "l.jsonl: line 1: \"label\" is null; expected a value",
               [&] { texts("l.jsonl", "{\"text\": \"x\", \"label\": null}"); });
  expect_error(ErrorKind::file, "l.jsonl: line 1: \"label\" is NaN; expected a class",
               [&] { texts("l.jsonl", "{\"text\": \"x\", \"label\": NaN}"); });
  for (const char* name : {"u.tsv", "u.csv", "u.jsonl", "u.txt", "u.conll"})
    expect_error(ErrorKind::file, "UTF-16 by its byte order mark",
                 [&] { texts(name, "\xFF\xFEt\0e\0"s); });
}

}  // namespace
}  // namespace tessera::train::data_file_test
