#include "tessera/train/data/label_data.h"

#include "tessera/train/train_testing.h"

namespace tessera::train::label_data_test {
namespace {

class Records : public testing::Test {
 protected:
  std::vector<Record> read(std::string_view name, std::string_view content, LabelData data = {}) {
    const std::string path = folder_.write(name, content);
    data.train = {path};
    check_label_data(data, "data");
    std::vector<Record> out;
    for_each_record(data, path, [&](Record&& record) { out.push_back(std::move(record)); });
    return out;
  }
  /// The message for a file, behind the folder's name.
  std::string refusal(std::string_view name, std::string_view content, LabelData data = {}) {
    std::string message = test::error_of([&] { read(name, content, data); });
    const std::string folder = folder_.path().string() + "/";
    if (const size_t at = message.find(folder); at != message.npos)
      message.erase(at, folder.size());
    return message;
  }

  TemporaryFolder folder_;
};

LabelData with_columns(std::vector<std::string> columns, std::string separator = "") {
  LabelData data;
  data.columns = std::move(columns);
  data.separator = std::move(separator);
  return data;
}

TEST_F(Records, TsvHoldsBareQuotes) {
  const auto rows = read("a.tsv", "sentence\tlabel\nsays \"no\" \t0\n\"open\t1\r\n\n");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].values, json_of(R"({"sentence": "says \"no\" ", "label": "0"})"));
  EXPECT_EQ(rows[1].values, json_of(R"({"sentence": "\"open", "label": "1"})"));
  EXPECT_TRUE(rows[1].is_table);
  EXPECT_TRUE(rows[1].where.ends_with("a.tsv: line 3"));
}

TEST_F(Records, ColumnsAndSplits) {
  LabelData data = with_columns({"label", "text"}, " ");
  data.max_splits = 1;
  data.format = LabelFormat::tsv;
  const auto rows = read("sst2.txt", "0 one long string\n1 fine\n", data);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].values, json_of(R"({"label": "0", "text": "one long string"})"));
  // names of one's own in place of those of the file
  LabelData named = with_columns({"a", "b"});
  named.header = true;
  EXPECT_EQ(read("b.tsv", "x\ty\n1\t2\n", named)[0].values, json_of(R"({"a": "1", "b": "2"})"));
}

TEST_F(Records, CsvAsRfc4180) {
  const auto rows =
      read("a.csv", "text,label\r\n\"a, \"\"b\"\"\",0\r\n\"two\nlines\",1\n5\" pipe,0\n,\"\"");
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].values, json_of(R"({"text": "a, \"b\"", "label": "0"})"));
  EXPECT_EQ(rows[1].values, json_of(R"({"text": "two\nlines", "label": "1"})"));
  EXPECT_TRUE(rows[1].where.ends_with("line 3"));
  EXPECT_TRUE(rows[2].where.ends_with("line 5"));
  EXPECT_EQ(rows[2].values["text"], "5\" pipe");
  EXPECT_EQ(rows[3].values, json_of(R"({"text": "", "label": ""})"));
}

TEST_F(Records, JsonLinesAndLists) {
  const auto lines = read("a.jsonl", "{\"text\": \"x\", \"label\": 1}\n\n{\"text\": \"y\"}\n");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].values["label"], 1);
  EXPECT_TRUE(lines[1].where.ends_with("line 3"));
  EXPECT_FALSE(lines[0].is_table);
  const auto list = read("a.json", " [{\"text\": \"x\"}, {\"text\": \"y\"}]");
  ASSERT_EQ(list.size(), 2u);
  EXPECT_TRUE(list[1].where.ends_with("line 1"));
}

TEST_F(Records, WordsInColumns) {
  const char* text =
      "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nPeter NNP B-NP B-PER\n";
  const auto rows = read("a.conll", text);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].values, json_of(R"({"words": ["EU", "rejects"], "labels": ["B-ORG", "O"]})"));
  EXPECT_TRUE(rows[1].where.ends_with("line 6"));
  LabelData data = with_columns({"words", "labels", "chunk", "ner"});
  EXPECT_EQ(read("b.conll", text, data)[0].values["labels"], json_of(R"(["NNP", "VBZ"])"));
}

TEST_F(Records, Squad) {
  LabelData data;
  data.format = LabelFormat::squad;
  const auto rows = read("a.json", R"({"data": [{"paragraphs": [{"context": "It is red.", "qas": [
      {"id": "q1", "question": "Which?", "answers": [{"text": "red", "answer_start": 6}]},
      {"id": "q2", "question": "Who?", "is_impossible": true, "answers": []}]}]}]})",
                         data);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].values["context"], "It is red.");
  EXPECT_EQ(rows[0].values["id"], "q1");
  EXPECT_EQ(rows[0].values["answers"][0]["answer_start"], 6);
  EXPECT_EQ(rows[1].values["answers"], Json::array());
}

TEST_F(Records, SayWhatIsWrongAndWhere) {
  EXPECT_EQ(refusal("a.tsv", "text\tlabel\nx\t0\n\ny\t1\n"),
            "[data] a.tsv: line 3: an empty line; expected an example on every line");
  EXPECT_EQ(refusal("a.tsv", "text\tlabel\nx\n"),
            "[data] a.tsv: line 2: 1 cells; expected 2 (\"text\", \"label\")");
  EXPECT_EQ(refusal("a.tsv", "text\ttext\nx\ty\n"),
            "[data] a.tsv: line 1: two columns are named \"text\"; expected a line of names, or "
            "data.columns where there is none");
  EXPECT_EQ(refusal("a.tsv", "text\tlabel\ncaf\xE9\t0\n"),
            "[data] a.tsv: line 2: byte 4 is 0xe9, which is not UTF-8; expected a file in UTF-8 "
            "(iconv -f latin1 -t utf-8 makes one)");
  EXPECT_NE(refusal("a.csv", "text,label\nx,0\n\xFF,1\n").find("0xff, which is not UTF-8"),
            std::string::npos);
  EXPECT_NE(refusal("a.csv", "text,label\n\"x,0\n").find("line 2: a quote that nothing closes"),
            std::string::npos);
  EXPECT_NE(refusal("a.csv", "text,label\n\"x\"y,0\n").find("text after the closing quote"),
            std::string::npos);
  EXPECT_EQ(refusal("a.csv", "text,label\n\nx,0\n"),
            "[data] a.csv: line 2: an empty line; expected an example on every line");
  EXPECT_EQ(refusal("a.jsonl", "{\"text\": \"x\"}\n[1]\n"),
            "[data] a.jsonl: line 2: found an array; expected an object");
  EXPECT_EQ(refusal("a.txt", ""), "[data] a.txt: the file is empty; expected examples");
  EXPECT_NE(refusal("a.conll", "EU B-ORG\nalone\n").find("line 2: one column"), std::string::npos);
  EXPECT_NE(refusal("a.conll", "EU B-ORG\na b c\n").find("3 columns; expected 2"),
            std::string::npos);
  LabelData squad;
  squad.format = LabelFormat::squad;
  EXPECT_EQ(refusal("a.json", "{}", squad), "[data] a.json: no \"data\"; expected a file of SQuAD");
  EXPECT_NE(refusal("a.parquet", "x").find("the name"), std::string::npos);
  EXPECT_NE(refusal("a.parquet", "PAR1abcd").find("to_json() of pandas or datasets"),
            std::string::npos);
}

TEST_F(Records, KeysThatDoNotGoTogether) {
  const auto where = [&](std::string_view name, const LabelData& data) {
    const std::string message = refusal(name, "a\tb\nc\td\n", data);
    return message.substr(0, message.find(']') + 1);
  };
  LabelData data;
  data.header = false;
  EXPECT_EQ(where("a.tsv", data), "[data.columns]");
  EXPECT_EQ(where("a.jsonl", data), "[data.header]");
  data = {};
  data.max_splits = 1;
  EXPECT_EQ(where("a.csv", data), "[data.max_splits]");
  EXPECT_EQ(where("a.jsonl", with_columns({"a"})), "[data.columns]");
  EXPECT_EQ(where("a.txt", with_columns({}, ";")), "[data.separator]");
  EXPECT_EQ(where("a.csv", with_columns({}, "\"")), "[data.separator]");
  data = {};
  data.valid = {"b.tsv"};
  data.valid_fraction = 0.1;
  EXPECT_EQ(where("a.tsv", data), "[data.valid_fraction]");
  data = {};
  data.train_labels = {"a", "b"};
  EXPECT_EQ(where("a.txt", data), "[data.train_labels]");
}

}  // namespace
}  // namespace tessera::train::label_data_test
