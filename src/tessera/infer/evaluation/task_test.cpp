// Scores of task files against lm-evaluation-harness's definitions (tools/golden/choices.py).
#include "tessera/infer/evaluation/task.h"

#include <cmath>

#include "tessera/base/testing.h"
#include "tessera/infer/infer_testing.h"

namespace tessera::infer::task_test {
namespace {

namespace fs = std::filesystem;
using spec::Json;
using test::TemporaryFolder;

const fs::path kTests = fs::path(TESSERA_SOURCE_DIR) / "tests/golden";

struct Golden {
  Json story = spec::read_json_file(kTests / "tasks/choices.json");
  TemporaryFolder folder;
  LoadedModel loaded = load_model(kTests / "families/llama/base");
  std::string file = folder.write("task.json", story["examples"].dump());

  Golden() {
    loaded.tokenizer =
        text::load_tokenizer(folder.write("tokenizer.json", story["tokenizer"].dump()));
  }
};

TEST(Task, ContinuationsAreEncodedWithTheirContext) {
  const Golden golden;
  for (const Json& one : golden.story["encoded"]) {
    const Continuation found = encode_continuation(
        *golden.loaded.tokenizer, one["context"], one["continuation"], one["limit"].get<int64_t>());
    EXPECT_EQ(found.tokens, one["tokens"].get<std::vector<int64_t>>()) << one["context"];
    EXPECT_EQ(found.context, one["context_tokens"].get<int64_t>()) << one["context"];
  }
  const Continuation with = encode_continuation(*golden.loaded.tokenizer, "it", " is", 0, true),
                     without = encode_continuation(*golden.loaded.tokenizer, "it", " is");
  EXPECT_EQ(with.tokens.front(), 0);
  EXPECT_EQ(with.tokens.size(), without.tokens.size() + 1);
  EXPECT_EQ(with.context, without.context + 1);
  test::expect_error(ErrorKind::input, "a choice of",
                     [&] { encode_continuation(*golden.loaded.tokenizer, "it", " a b c d", 3); });
}

TEST(Task, MultipleChoiceIsThatOfLmEvaluationHarness) {
  const Golden golden;
  const TaskFile task = read_task_file(golden.file);
  std::vector<Json> lines;
  for (const int64_t at_once : {1, 4, 16}) {
    ResultLines results(golden.folder / fmt::format("{}.jsonl", at_once), Json::object());
    const TaskReport report = evaluate_task(
        golden.loaded, task, {.at_once = at_once, .mutual_information = true}, results);
    EXPECT_EQ(report.examples, 6);
    ASSERT_EQ(report.scores.size(), golden.story["scores"].size());
    for (const auto& [name, score] : report.scores) {
      EXPECT_NEAR(score.value, golden.story["scores"][name][0].get<double>(), 1e-12) << name;
      EXPECT_NEAR(score.standard_error, golden.story["scores"][name][1].get<double>(), 1e-12);
      EXPECT_STREQ(score.interval, "wilson");
    }
    const ResultLines stored(golden.folder / fmt::format("{}.jsonl", at_once), Json::object());
    ASSERT_EQ(stored.done().size(), 6u);
    for (size_t i = 0; i < 6; ++i) {
      const Json& want = golden.story["results"][i];
      const Json& found = stored.done()[i];
      for (size_t c = 0; c < want["log_likelihoods"].size(); ++c)
        EXPECT_NEAR(found["log_likelihoods"][c].get<double>(),
                    want["log_likelihoods"][c].get<double>(), 2e-5);
      for (const char* key : {"choice", "gold", "acc", "acc_norm", "acc_bytes", "acc_mutual_info"})
        EXPECT_EQ(found[key], want[key]) << i << key;
    }
    // any batch has the same bits
    if (at_once == 1)
      lines = stored.done();
    else
      EXPECT_EQ(stored.done(), lines);
  }
}

TEST(Task, ChoicesShareTheirContext) {
  const Golden golden;
  const TaskFile task = read_task_file(golden.folder.write(
      "long.json", R"([{"query": "the capital of the capital of the capital of Geneva is",
                        "choices": ["Bern", "Zug", "Basel", "no", "yes", "it"], "gold": 0}])"));
  ResultLines none;
  const TaskReport report = evaluate_task(golden.loaded, task, {}, none);
  // 17 tokens of context, of which the last predicts: 5 of 6 choices have 16 of them from the first
  EXPECT_EQ(report.cached_tokens, 5 * 16);
}

TEST(Task, StoredResultsAreContinued) {
  const Golden golden;
  const TaskFile task = read_task_file(golden.file);
  const auto run = [&](const char* file, int64_t limit) {
    ResultLines results(golden.folder / file, Json::object());
    return evaluate_task(golden.loaded, task, {.limit = limit, .at_once = 1}, results);
  };
  EXPECT_EQ(run("a.jsonl", 2).examples, 2);
  const TaskReport rest = run("a.jsonl", 0), all = run("b.jsonl", 0);
  EXPECT_EQ(rest.resumed, 2);
  EXPECT_EQ(rest.examples, 6);
  EXPECT_LT(rest.computed_tokens, all.computed_tokens);
  for (size_t s = 0; s < all.scores.size(); ++s)
    EXPECT_EQ(rest.scores[s].second.to_json(), all.scores[s].second.to_json());
  EXPECT_EQ(run("a.jsonl", 3).resumed, 3);
}

// training.md 2.5
TEST(Task, ChoicesAreNormalizedByCharactersBytesAndPrior) {
  TaskExample example{.choices = {"Bern", "Geneva", "Цюрих", "Basel"}};
  const std::vector<std::string> right = {"acc", "acc_norm", "acc_bytes", "acc_mutual_info"};
  for (int64_t gold = 0; gold < 4; ++gold) {
    example.gold = {gold};
    const Json line = choice_result(example, {-4, -5, -5.5, -4.5}, {-5, -9, -7, -12});
    for (size_t s = 0; s < right.size(); ++s)
      EXPECT_EQ(line[right[s]], s == static_cast<size_t>(gold) ? 1 : 0) << gold << right[s];
  }
  example.gold = {1};
  EXPECT_EQ(choice_result(example, {-5, -5, -6, -7}, {})["acc"], 0);  // the first of equal ones
  EXPECT_FALSE(choice_result(example, {-5, -5, -6, -7}, {}).contains("acc_mutual_info"));
}

// the log-likelihoods of tools/golden/choices.py, asked for in other ways
TEST(Task, ContinuationsAndContextsHaveTheSameLogLikelihoods) {
  const Golden golden;
  const Json& example = golden.story["examples"][0];
  const Json& want = golden.story["results"][0]["log_likelihoods"];
  std::string single;
  for (const Json& choice : example["choices"])
    single += Json{{"context", example["context"]}, {"continuation", choice}}.dump() + "\n";
  const auto report_of = [&](const TaskFile& task) {
    ResultLines none;
    return evaluate_task(golden.loaded, task, {}, none);
  };
  const TaskReport each = report_of(read_task_file(golden.folder.write("single.jsonl", single)));
  ASSERT_EQ(each.lines.size(), want.size());
  double sum = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(each.lines[i]["log_likelihood"].get<double>(), want[i].get<double>(), 2e-5);
    sum += want[i].get<double>();
  }
  ASSERT_EQ(each.scores.size(), 2u);
  EXPECT_EQ(each.scores[1].first, "perplexity");
  EXPECT_NEAR(std::log(each.scores[1].second.value), -sum / static_cast<double>(want.size()), 2e-5);

  // a choice is part of its context, and the same text follows
  const std::string text = example["context"], last = example["choices"][0];
  Json partial = {
      {"contexts", {text, "which city is it? " + text}}, {"continuation", last}, {"gold", 0}};
  const TaskReport both =
      report_of(read_task_file(golden.folder.write("partial.jsonl", partial.dump())));
  EXPECT_NEAR(both.lines[0]["log_likelihoods"][0].get<double>(), want[0].get<double>(), 2e-5);

  TaskFile mass = read_task_file(golden.folder.write("mass.jsonl", Json(example).dump()));
  mass.examples[0].gold = {0, 2};
  mass.scores = {"mc2"};
  const TaskReport share = report_of(mass);
  ASSERT_EQ(share.scores.size(), 1u);
  double right = 0, all = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double p = std::exp(want[i].get<double>());
    all += p;
    right += i % 2 == 0 ? p : 0;
  }
  EXPECT_NEAR(share.scores[0].second.value, right / all, 1e-4);
}

TEST(Task, RetrievalIsTheShareOfAnswersFound) {
  const TaskExample example{.answers = {"1234567", "Ölberg", "abc"}};
  const Json line = retrieval_result(example, "They are 1234567 and ölberg.");
  EXPECT_EQ(line["found"], Json({1, 1, 0}));
  const Golden golden;
  ResultLines none;
  const TaskReport report = evaluate_task(
      golden.loaded,
      read_task_file(golden.folder.write(
          "r.jsonl", R"({"prompt": "the capital", "contains": ["", "no such text"]})")),
      {.max_new_tokens = 3}, none);
  ASSERT_EQ(report.scores.size(), 2u);
  EXPECT_EQ(report.scores[0].first, "recall");
  EXPECT_EQ(report.scores[0].second.value, 0.5);
  EXPECT_EQ(report.scores[1].second.value, 0);
}

TEST(Task, GeneratedAnswersHaveTheScoresOfTheirTexts) {
  const Golden golden;
  const TaskFile task = read_task_file(
      golden.folder.write("gen.jsonl",
                          "{\"prompt\": \"the capital\", \"answers\": [\"of it\", \"is\"]}\n"
                          "{\"prompt\": \"\", \"answer\": \"a city\"}\n"));
  ResultLines results(golden.folder / "gen.out", Json::object());
  const TaskReport report = evaluate_task(golden.loaded, task, {.max_new_tokens = 5}, results);
  const ResultLines stored(golden.folder / "gen.out", Json::object());
  ASSERT_EQ(stored.done().size(), 2u);
  std::vector<std::string> names;
  for (const auto& [name, score] : report.scores) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"exact_match", "f1", "rouge_l", "bleu", "chrf"}));
  // a greedy decoding of its own
  GenerateOptions how;
  how.max_new_tokens = 5;
  how.stop_ids = eos_ids(golden.loaded);
  how.sampling.temperature = 0;
  const auto ids = golden.loaded.tokenizer->encode("the capital", {.add_special = false});
  const Generations made =
      generate(golden.loaded.model, &*golden.loaded.tokenizer, {{ids.begin(), ids.end()}}, how);
  EXPECT_EQ(stored.done()[0]["answer"], made.rows[0].text);

  const TaskExample example{.answers = {"the red house", "a blue house"}};
  const Json line = answer_result(example, "Blue house.");
  EXPECT_EQ(line["exact_match"], 1);
  EXPECT_EQ(line["f1"], 1.0);
  EXPECT_DOUBLE_EQ(line["rouge_l"].get<double>(), 0.8);  // 2 of 2 and 2 of 3 words
  EXPECT_EQ(answer_result(example, "red car")["exact_match"], 0);
  EXPECT_DOUBLE_EQ(answer_result(example, "red car")["f1"].get<double>(), 0.5);
}

}  // namespace
}  // namespace tessera::infer::task_test
