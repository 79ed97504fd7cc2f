#include "tessera/train/data/label_examples.h"

#include "tessera/train/train_testing.h"

namespace tessera::train::label_examples_test {
namespace {

class Examples : public testing::Test {
 protected:
  LabelData data(std::string_view name, std::string_view content) {
    LabelData out;
    out.train = {folder_.write(name, content)};
    return out;
  }
  template <class Call>
  std::string refusal(Call&& call) {
    std::string message = test::error_of(call);
    const std::string folder = folder_.path().string() + "/";
    for (size_t at; (at = message.find(folder)) != message.npos;) message.erase(at, folder.size());
    return message;
  }
  std::string refused_text(std::string_view name,
                           std::string_view content,
                           LabelOf kind = LabelOf::one_class) {
    return refusal([&] { read_texts(data(name, content), LabelSplit::train, kind); });
  }
  std::string refused_question(const Json& values) {
    return refusal(
        [&] { read_questions(data("q.jsonl", values.dump() + "\n"), LabelSplit::train); });
  }

  TemporaryFolder folder_;
};

TEST_F(Examples, TextsWithClasses) {
  LabelData pairs = data("a.tsv", "premise\thypothesis\tgold\nit rains\twet\tentailment\n");
  pairs.text_key = "premise";
  pairs.text_b_key = "hypothesis";
  pairs.label_key = "gold";
  const auto texts = read_texts(pairs, LabelSplit::train, LabelOf::one_class);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0].text, "it rains");
  EXPECT_EQ(texts[0].text_b, "wet");
  EXPECT_EQ(texts[0].labels, std::vector<std::string>{"entailment"});
  const auto json = read_texts(
      data("a.jsonl", "{\"text\": \"x\", \"label\": 3}\n{\"text\": \"y\", \"label\": true}\n"),
      LabelSplit::train, LabelOf::one_class);
  EXPECT_EQ(json[0].labels[0], "3");
  EXPECT_EQ(json[1].labels[0], "true");
}

TEST_F(Examples, TextsWithSeveralClassesOrNone) {
  using Labels = std::vector<std::string>;
  const auto table = read_texts(data("a.tsv", "text\tlabel\nx\tred, round\ny\t\n"),
                                LabelSplit::train, LabelOf::multi_label);
  EXPECT_EQ(table[0].labels, (Labels{"red", "round"}));
  EXPECT_TRUE(table[1].labels.empty());
  const auto json = read_texts(data("a.jsonl", R"({"text": "x", "label": ["a", 2]})"),
                               LabelSplit::train, LabelOf::multi_label);
  EXPECT_EQ(json[0].labels, (Labels{"a", "2"}));
}

TEST_F(Examples, TextsWithScores) {
  const auto texts = read_texts(data("a.csv", "text,text_b,score\nx,y,3.75\nx,z,-1e-1\n"),
                                LabelSplit::train, LabelOf::score);
  EXPECT_EQ(texts[0].score, 3.75);
  EXPECT_EQ(texts[1].score, -0.1);
  EXPECT_NE(refused_text("a.csv", "text,score\nx,much\n", LabelOf::score)
                .find("line 2: \"score\" is \"much\"; expected a number"),
            std::string::npos);
  EXPECT_NE(refused_text("a.csv", "text,score\nx,inf\n", LabelOf::score).find("not finite"),
            std::string::npos);
}

TEST_F(Examples, LabelsInAFileOfTheirOwn) {
  LabelData lines = data("a.txt", "good\nbad\n");
  lines.train_labels = {folder_.write("a.labels", "1\n0\n")};
  const auto texts = read_texts(lines, LabelSplit::train, LabelOf::one_class);
  EXPECT_EQ(texts[0].labels[0], "1");
  EXPECT_EQ(texts[1].text, "bad");
  for (const char* labels : {"1\n", "1\n0\n1\n"}) {
    lines.train_labels = {folder_.write("a.labels", labels)};
    const std::string said =
        refusal([&] { read_texts(lines, LabelSplit::train, LabelOf::one_class); });
    EXPECT_NE(said.find("labels; expected 2, one for every example of a.txt"), std::string::npos)
        << said;
  }
  lines.train_labels = {folder_.write("a.labels", "1\n\n0\n")};
  EXPECT_EQ(refusal([&] { read_texts(lines, LabelSplit::train, LabelOf::one_class); }),
            "[data] a.labels: line 2: an empty line; expected a label on every line");
}

TEST_F(Examples, MissingOnesAreSaidWithTheirLine) {
  EXPECT_EQ(refused_text("a.tsv", "sentence\tlabels\nx\t0\n"),
            "[data] a.tsv: line 2: no \"text\"; found \"sentence\", \"labels\"; expected it, or "
            "data.text_key with the name of another");
  EXPECT_EQ(refused_text("a.tsv", "text\tlabels\nx\t0\n"),
            "[data] a.tsv: line 2: no \"label\" (did you mean \"labels\"?); found \"text\", "
            "\"labels\"; expected it, or data.label_key with the name of another");
  EXPECT_EQ(refused_text("a.tsv", "text\tlabel\nx\t \n"),
            "[data] a.tsv: line 2: \"label\" is empty; expected a label");
  EXPECT_EQ(refused_text("a.tsv", "text\tlabel\n \t1\n"),
            "[data] a.tsv: line 2: \"text\" is empty; expected a text");
  EXPECT_NE(
      refused_text("a.tsv", "text\tlabel\nx\t-1\n").find("is -1, which marks a missing label"),
      std::string::npos);
  EXPECT_NE(refused_text("a.tsv", "text\tlabel\nx\t-1\n").find("0 and 1 for -1 and 1"),
            std::string::npos);
  EXPECT_NE(refused_text("a.jsonl", "{\"text\": \"x\", \"label\": 1.0}\n")
                .find("--task regression for numbers"),
            std::string::npos);
  EXPECT_NE(refused_text("a.jsonl", "{\"text\": \"x\", \"label\": null}\n")
                .find("\"label\" is null; expected a value"),
            std::string::npos);
  EXPECT_NE(refused_text("a.jsonl", "{\"text\": \"x\", \"label\": 0.5}\n").find("is a number"),
            std::string::npos);
  EXPECT_NE(refused_text("a.jsonl", "{\"text\": \"x\", \"label\": [1]}\n").find("multi_label"),
            std::string::npos);
  EXPECT_NE(refused_text("a.tsv", "text\tlabel\n").find("no example"), std::string::npos);
}

TEST_F(Examples, WordsHaveALabelEach) {
  const auto table =
      read_words(data("a.tsv", "words\tlabels\nEU rejects\tB-ORG O\n"), LabelSplit::train);
  EXPECT_EQ(table[0].words, (std::vector<std::string>{"EU", "rejects"}));
  EXPECT_EQ(table[0].labels, (std::vector<std::string>{"B-ORG", "O"}));
  const auto json =
      read_words(data("a.jsonl", R"({"words": ["a"], "labels": [4]})"), LabelSplit::train);
  EXPECT_EQ(json[0].labels[0], "4");
  const auto refused = [&](const char* line) {
    return refusal([&] { read_words(data("a.jsonl", line), LabelSplit::train); });
  };
  EXPECT_EQ(refused(R"({"words": ["a", "b"], "labels": ["O"]})"),
            "[data] a.jsonl: line 1: 1 labels; expected 2, one for every word");
  EXPECT_NE(refused(R"({"words": [], "labels": []})").find("is empty"), std::string::npos);
  EXPECT_NE(refused(R"({"words": ["a", ""], "labels": ["O", "O"]})").find("item 2"),
            std::string::npos);
}

TEST_F(Examples, AnswersStandInTheirContext) {
  // offsets count characters, not bytes
  const Json base = json_of(R"({"context": "Käse ist gelb.", "question": "Wie?"})");
  const auto read = [&](const Json& answers) {
    Json values = base;
    values.update(answers);
    return read_questions(data("q.jsonl", values.dump() + "\n"), LabelSplit::train).at(0);
  };
  for (const char* answers : {R"({"answers": [{"text": "gelb", "answer_start": 9}]})",
                              R"({"answers": {"text": ["gelb"], "answer_start": [9]}})",
                              R"({"answers": "gelb", "answer_start": "9"})",
                              R"({"answers": "gelb"})", R"({"answers": ["gelb"]})"}) {
    const Question question = read(json_of(answers));
    ASSERT_EQ(question.answers.size(), 1u) << answers;
    EXPECT_EQ(question.answers[0].begin, 10u) << answers;
    EXPECT_EQ(question.answers[0].text, "gelb");
  }
  for (const char* none : {R"({"answers": []})", R"({"answers": ""})",
                           R"({"answers": {"text": [], "answer_start": []}})"})
    EXPECT_TRUE(read(json_of(none)).answers.empty()) << none;

  const auto refused = [&](const char* answers) {
    Json values = base;
    values.update(json_of(answers));
    return refused_question(values);
  };
  EXPECT_EQ(refused(R"({"answers": [{"text": "gelb", "answer_start": 10}]})"),
            "[data] q.jsonl: line 1: the answer \"gelb\" is not at character 10 of the "
            "context; expected the number of its first character, counted from 0");
  EXPECT_NE(refused(R"({"answers": [{"text": "gelb", "answer_start": 99}]})").find("character 99"),
            std::string::npos);
  EXPECT_NE(refused(R"({"answers": [{"text": "gelb", "answer_start": -1}]})").find("character -1"),
            std::string::npos);
  EXPECT_NE(refused(R"({"answers": "blau"})").find("is not in the context"), std::string::npos);
  EXPECT_NE(refused("{}").find("no \"answers\""), std::string::npos);
  EXPECT_NE(refused(R"({"answers": {"text": ["a"], "answer_start": []}})").find("two lists"),
            std::string::npos);
}

TEST(HeldOut, SomeButNotAllAndAlwaysTheSame) {
  for (const int64_t n : {2, 3, 10, 1000}) {
    const auto out = held_out(n, 0.1);
    EXPECT_EQ(std::count(out.begin(), out.end(), true), std::max<int64_t>(1, n / 10));
    EXPECT_EQ(out, held_out(n, 0.1));
  }
  // drawn from everywhere: files are often sorted by class
  const auto out = held_out(1000, 0.1);
  EXPECT_GT(std::count(out.begin(), out.begin() + 500, true), 30);
  EXPECT_GT(std::count(out.begin() + 500, out.end(), true), 30);
  const auto most = held_out(3, 0.99);
  EXPECT_EQ(std::count(most.begin(), most.end(), true), 2);
  EXPECT_EQ(held_out(5, 0), std::vector<bool>(5, false));
  expect_error(ErrorKind::input, "expected at least 2", [] { held_out(1, 0.5); });
}

TEST(ClassNames, InOrderAndByNumber) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(ClassNames::of({"10", "9", "9", "2"}).names(), (Names{"2", "9", "10"}));
  EXPECT_EQ(ClassNames::of({"pos", "neg", "pos"}).names(), (Names{"neg", "pos"}));
  const ClassNames two({"negative", "positive"});
  EXPECT_EQ(two.number("positive", "x"), 1);
  EXPECT_EQ(two.number("0", "x"), 0);
  // a number that is a name is that name
  const ClassNames stars({"1", "2", "5"});
  EXPECT_EQ(stars.number("5", "x"), 2);
  EXPECT_EQ(test::error_of(ErrorKind::input, [&] { stars.number("0", "a: line 3"); }),
            "[data] a: line 3: class \"0\" is unknown; expected one of \"1\", \"2\", \"5\"");
  EXPECT_EQ(test::error_of(ErrorKind::input, [&] { two.number("positve", "a: line 3"); }),
            "[data] a: line 3: class \"positve\" is unknown (did you mean \"positive\"?); expected "
            "one of \"negative\", \"positive\"");
  expect_error(ErrorKind::input, "class \"2\" is unknown", [&] { two.number("2", "x"); });
  expect_error(ErrorKind::spec, "class \"a\" is repeated", [] { ClassNames({"a", "a"}); });
  expect_error(ErrorKind::spec, "no class", [] { ClassNames(Names{}); });
}

}  // namespace
}  // namespace tessera::train::label_examples_test
