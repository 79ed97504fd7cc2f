#include "tessera/infer/evaluation/task_file.h"

#include <gtest/gtest.h>

#include <set>

#include "tessera/base/testing.h"
#include "tessera/infer/evaluation/result_lines.h"

namespace tessera::infer::task_file_test {
namespace {

using spec::Json;
using test::TemporaryFolder;

const char* const kQuestions = R"lines({"query": "1 + 1 =", "choices": ["1", "2"], "gold": 1}

{"context": "Capital?", "choices": ["Bern", "Rome", "Oslo"], "answer": "Oslo", "delimiter": "\n"}
{"prompt": "", "choices": ["a", "b"], "gold": [0, "b"]}
)lines";

TEST(TaskFile, ReadsMultipleChoiceAndGeneration) {
  const TemporaryFolder folder;
  const TaskFile choices = read_task_file(folder.write("a.jsonl", kQuestions));
  EXPECT_EQ(choices.kind, TaskKind::multiple_choice);
  ASSERT_EQ(choices.examples.size(), 3u);
  EXPECT_EQ(choices.examples[0].context, "1 + 1 =");
  EXPECT_EQ(choices.examples[0].gold, std::vector<int64_t>{1});
  EXPECT_EQ(choices.examples[1].gold, std::vector<int64_t>{2});
  EXPECT_EQ(choices.examples[1].delimiter, "\n");
  EXPECT_EQ(choices.examples[2].gold, (std::vector<int64_t>{0, 1}));
  const TaskFile answers = read_task_file(folder.write(
      "b.json", R"([{"prompt": "p", "answers": ["x", "y"]}, {"context": "q", "answer": "z"}])"));
  EXPECT_EQ(answers.kind, TaskKind::generation);
  EXPECT_EQ(answers.examples[0].answers, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(answers.examples[1].answers, std::vector<std::string>{"z"});
}

TEST(TaskFile, ReadsContinuationsContextsAndRetrieval) {
  const TemporaryFolder folder;
  const TaskFile partial = read_task_file(folder.write(
      "p.json", R"([{"contexts": ["The cup", "The box"], "continuation": "was big.", "gold": 1,
                     "description": "Who?\n"}])"));
  EXPECT_EQ(partial.kind, TaskKind::multiple_choice);
  EXPECT_EQ(partial.examples[0].contexts, (std::vector<std::string>{"The cup", "The box"}));
  EXPECT_EQ(partial.examples[0].choices, (std::vector<std::string>{"was big.", "was big."}));
  EXPECT_EQ(prompt_of(partial, 0, {}), "Who?\n");
  const TaskFile one =
      read_task_file(folder.write("c.jsonl",
                                  "{\"context\": \"a b\", \"continuation\": \"c\"}\n"
                                  "{\"context\": \"d\", \"continuation\": \"e\"}\n"));
  EXPECT_EQ(one.kind, TaskKind::continuation);
  EXPECT_EQ(prompt_of(one, 0, {.examples = 1}), "d e\n\na b");
  for (const char* line : {R"({"prompt": "x y", "contains": ["1", "2"]})",
                           R"({"input": "x ", "outputs": ["1", "2"], "answer_prefix": "y"})"}) {
    const TaskFile found = read_task_file(folder.write("r.jsonl", line));
    EXPECT_EQ(found.kind, TaskKind::retrieval);
    EXPECT_EQ(found.examples[0].context, "x y");
    EXPECT_EQ(found.examples[0].answers, (std::vector<std::string>{"1", "2"}));
  }
}

TEST(TaskFile, BadFilesGiveOneLine) {
  const TemporaryFolder folder;
  for (const auto& [content, message] :
       {std::pair{"", "no examples; expected JSON lines"},
        {"[]", "no examples"},
        {"3", "bad.jsonl:1] found an integer; expected an object"},
        {"\n{\"choices\": [\"a\", \"b\"], \"gold\": 0}", "bad.jsonl:2] no \"context\""},
        {R"({"query": 3})", "\"context\" is an integer; expected a string"},
        {R"({"query": "q"})", "neither \"choices\""},
        {R"({"query": "q", "choices": ["a"], "gold": 0})", "1 choice; expected at least 2"},
        {R"({"query": "q", "choices": ["a", ""], "gold": 0})", "an empty choice"},
        {R"({"query": "q", "choices": ["a", "b"]})", "no \"gold\""},
        {R"({"query": "q", "choices": ["a", "b"], "gold": 2})",
         "gold = 2; expected the number of the right choice, 0 to 1, or its text"},
        {R"({"query": "q", "choices": ["a", "b"], "gold": []})", "\"gold\" is an empty list"},
        {R"({"contexts": ["a", "b"], "gold": 0})", "no \"continuation\"; expected it with"},
        {R"({"contexts": ["a"], "continuation": "c", "gold": 0})",
         "1 choice; expected at least 2 under \"contexts\""},
        {R"({"query": "q", "continuation": ""})", "an empty \"continuation\""},
        {R"({"query": "q", "answers": []})", "\"answers\" is an empty list"},
        {"{\"query\": \"q\", \"answer\": \"a\"}\n{\"query\": \"q\", \"choices\": [\"a\", \"b\"], "
         "\"gold\": 0}",
         "bad.jsonl:2] is multiple choice, unlike the examples before"},
        {"{\"query\": ", "bad.jsonl:1]"}}) {
    const std::string path = folder.write("bad.jsonl", content);
    test::expect_error(ErrorKind::file, message, [&] { read_task_file(path); });
  }
}

TEST(TaskFile, FewShotExamplesAreDrawnFromTheOthers) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 8; ++i)
    lines +=
        fmt::format("{{\"query\": \"Q{}:\", \"choices\": [\"x\", \"A{}\"], \"gold\": 1}}\n", i, i);
  const TaskFile task = read_task_file(folder.write("a.jsonl", lines));
  EXPECT_EQ(prompt_of(task, 3, {}), "Q3:");
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const std::string prompt = prompt_of(task, 3, {.examples = 2, .seed = seed});
    ASSERT_EQ(prompt.size(), std::string("Q1: A1\n\nQ2: A2\n\nQ3:").size());
    EXPECT_EQ(prompt.substr(16), "Q3:");
    EXPECT_EQ(prompt[1], prompt[5]);
    EXPECT_NE(prompt[1], '3');
    EXPECT_NE(prompt[1], prompt[9]);
    seen.insert(prompt.substr(0, 1) + prompt[1] + prompt[9]);
    EXPECT_EQ(prompt, prompt_of(task, 3, {.examples = 2, .seed = seed}));
  }
  EXPECT_GT(seen.size(), 20u);  // of 42
  std::set<char> all;
  const std::string seven = prompt_of(task, 3, {.examples = 7});
  for (size_t i = 1; i < 7 * 8; i += 8) all.insert(seven[i]);
  EXPECT_EQ(all.size(), 7u);
  test::expect_error(ErrorKind::usage, "8 few-shot examples; expected at most 7",
                     [&] { prompt_of(task, 3, {.examples = 8}); });
  EXPECT_EQ(prompt_of(task, 3, {.examples = 8, .source = &task}).size(), 8 * 8 + 3u);
  const TaskFile answers =
      read_task_file(folder.write("b.json", R"([{"prompt": "p", "answers": ["x"]}])"));
  test::expect_error(ErrorKind::usage, "differ in kind",
                     [&] { prompt_of(task, 3, {.examples = 1, .source = &answers}); });
}

TEST(ResultLines, ContinueWhereTheyEnd) {
  const TemporaryFolder folder;
  const std::string path = (folder / "out.jsonl").string();
  const Json evaluation = {{"model", "a"}, {"seed", 1}};
  for (int64_t i = 0; i < 3; ++i) {
    ResultLines lines(path, evaluation);
    ASSERT_EQ(std::ssize(lines.done()), i);
    if (i > 0) EXPECT_EQ(lines.done().back(), (Json{{"index", i - 1}, {"acc", 1}}));
    lines.add({{"index", i}, {"acc", 1}});
    // a process killed in the middle of a line
    std::ofstream(path, std::ios::app) << R"({"index": 9, "a)";
  }
  test::expect_error(ErrorKind::usage,
                     "holds results of another evaluation: model = \"a\", here \"b\"; expected",
                     [&] {
                       ResultLines(path, {{"model", "b"}, {"seed", 1}});
                     });
  for (const char* content : {"no JSON\n", "some text"})
    test::expect_error(ErrorKind::file, "other.jsonl",
                       [&] { ResultLines(folder.write("other.jsonl", content), evaluation); });
  test::expect_error(ErrorKind::file, "no result of example 0", [&] {
    ResultLines(folder.write("gap.jsonl", evaluation.dump() + "\n{\"index\": 4}\n"), evaluation);
  });
  test::expect_error(ErrorKind::file, "no result of example 0", [&] {
    ResultLines(folder.write("text.jsonl", evaluation.dump() + "\n{\"index\": \"0\"}\n"),
                evaluation);
  });
  test::expect_error(ErrorKind::resource, "cannot be written",
                     [&] { ResultLines(folder / "none/out.jsonl", evaluation); });
}

}  // namespace
}  // namespace tessera::infer::task_file_test
