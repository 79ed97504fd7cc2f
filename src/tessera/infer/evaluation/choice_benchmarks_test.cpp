// Prompts, choices and right answers against lm-evaluation-harness (tools/golden/benchmarks.py).
#include "tessera/infer/evaluation/choice_benchmarks.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "tessera/base/testing.h"

namespace tessera::infer::choice_benchmarks_test {
namespace {

using spec::Json;

TEST(ChoiceBenchmarks, RequestsAreThoseOfLmEvaluationHarness) {
  const Json story = spec::read_json_file(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                          "tests/golden/tasks/benchmarks.json");
  std::set<std::string> tested;
  for (const Json& one : story["cases"]) {
    const std::string name = one["task"];
    SCOPED_TRACE(name);
    tested.insert(name);
    const ChoiceBenchmark benchmark(name);
    for (const char* layout : {"document", "also"}) {
      if (!one.contains(layout)) continue;
      const auto [example, kind] = benchmark.example(one[layout], "here");
      EXPECT_EQ(kind, one.contains("gold") ? TaskKind::multiple_choice : TaskKind::continuation);
      EXPECT_EQ(example.description, one.value("description", ""));
      ASSERT_EQ(example.choices.size(), one["requests"].size());
      for (size_t c = 0; c < example.choices.size(); ++c) {
        const std::string own = example.contexts.empty() ? "" : example.contexts[c];
        EXPECT_EQ(example.context + own, one["requests"][c][0].get<std::string>());
        EXPECT_EQ(example.delimiter + example.choices[c], one["requests"][c][1].get<std::string>());
      }
      const std::vector<int64_t> none;
      EXPECT_EQ(example.gold, one.contains("gold") ? one["gold"].get<std::vector<int64_t>>() : none)
          << layout;
    }
  }
  // the others share templates
  for (const std::string& name : choice_benchmarks())
    EXPECT_TRUE(tested.contains(name) || name == "lambada_standard") << name;
}

TEST(ChoiceBenchmarks, OriginalTablesOfMmlu) {
  const Json row = {{"question", "1 + 1?"}, {"A", "1"}, {"B", "2"}, {"C", "3"}, {"D", "4"},
                    {"answer", "B"}};
  const auto [example, kind] = ChoiceBenchmark("mmlu").example(row, "here");
  EXPECT_EQ(example.context, "1 + 1?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:");
  EXPECT_EQ(example.description, "The following are multiple choice questions (with answers).\n\n");
  EXPECT_EQ(example.gold, std::vector<int64_t>{1});
}

TEST(ChoiceBenchmarks, OtherDocumentsGiveOneLine) {
  test::expect_error(ErrorKind::usage, "--task hellaswagg; expected one of hellaswag, arc_easy",
                     [] { ChoiceBenchmark("hellaswagg"); });
  const auto refused = [](const char* name, const Json& document, const char* message) {
    test::expect_error(ErrorKind::file, message,
                       [&] { ChoiceBenchmark(name).example(document, "a.jsonl: line 1"); });
  };
  refused("piqa", {{"goal", "g"}, {"sol1", "a"}, {"sol2", "b"}},
          "[a.jsonl: line 1] no \"label\"; expected a document of piqa: goal, sol1, sol2, label");
  refused("piqa", {{"goal", "g"}, {"sol1", "a"}, {"sol2", "b"}, {"label", 2}},
          "gold = 2; expected the number of the right choice, 0 to 1");
  refused("arc_easy",
          {{"question", "q"},
           {"choices", {{"text", {"a", "b"}}, {"label", {"A", "B"}}}},
           {"answerKey", "E"}},
          "gold of a document of arc_easy is \"\"");
  refused("sciq", Json("text"), "found a string; expected an object");
}

}  // namespace
}  // namespace tessera::infer::choice_benchmarks_test
