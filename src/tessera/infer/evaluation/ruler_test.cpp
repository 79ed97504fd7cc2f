// Prompts against RULER's templates (tools/golden/ruler.py), and contexts against their
// definitions.
#include "tessera/infer/evaluation/ruler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tessera/base/testing.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/byte_tokenizer.h"

namespace tessera::infer::ruler_test {
namespace {

using spec::Json;

const Json& story() {
  static const Json json = spec::read_json_file(std::filesystem::path(TESSERA_SOURCE_DIR) /
                                                "tests/golden/tasks/ruler.json");
  return json;
}

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++n;
  return n;
}

std::map<std::string, int64_t> words_in(const std::string& text,
                                        const std::string& after,
                                        const std::string& before) {
  const size_t begin = text.rfind(after) + after.size();
  std::istringstream words(text.substr(begin, text.find(before, begin) - begin));
  std::map<std::string, int64_t> counts;
  for (std::string word; words >> word;) ++counts[word];
  return counts;
}

TEST(Ruler, PromptsAreThoseOfItsTemplates) {
  for (const Json& one : story()["needles"]) {
    const RulerTask* task = find_ruler_task(one["task"]);
    ASSERT_NE(task, nullptr);
    EXPECT_EQ(needle_prompt(*task, "<context>", one["queries"].get<std::vector<std::string>>()),
              one["prompt"].get<std::string>());
    EXPECT_EQ(task->answer_tokens, story()["answer_tokens"]["needles"]);
  }
  EXPECT_EQ(variables_prompt("<context>", "12345", 5), story()["variables"].get<std::string>());
  EXPECT_EQ(common_words_prompt("<context>"), story()["common_words"].get<std::string>());
  EXPECT_EQ(frequent_words_prompt("<context>"), story()["frequent_words"].get<std::string>());
  EXPECT_EQ(find_ruler_task("vt")->answer_tokens, story()["answer_tokens"]["variables"]);
  EXPECT_EQ(find_ruler_task("cwe")->answer_tokens, story()["answer_tokens"]["common_words"]);
  EXPECT_EQ(find_ruler_task("fwe")->answer_tokens, story()["answer_tokens"]["frequent_words"]);
  EXPECT_EQ(find_ruler_task("niah_single_4"), nullptr);
}

TEST(Ruler, NeedlesAreAtTheirDepths) {
  const std::vector<std::string> essay =
      sentences_of("One  is here.\nTwo follows! Is it 3.5?  Yes");
  EXPECT_EQ(essay, (std::vector<std::string>{"One is here.", "Two follows!", "Is it 3.5?", "Yes"}));
  for (const RulerTask& task : ruler_tasks()) {
    if (!task.by_depth()) continue;
    SCOPED_TRACE(task.name);
    std::vector<double> depths;
    for (int64_t a = 0; a < task.n_answers(); ++a) depths.push_back(a % 2 == 0 ? 1.0 : 0.0);
    for (uint64_t seed : {0u, 1u, 2u}) {
      const RulerExample made = make_ruler(task, 20, 4096, depths, essay, RandomKey(seed));
      ASSERT_EQ(made.answers.size(), depths.size());
      const bool uuids = task.values == RulerTask::Item::uuids;
      const std::regex form(
          uuids ? "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
                : "[1-9][0-9]{6}");
      const std::string needle =
          fmt::format("One of the special magic {} for ", uuids ? "uuids" : "numbers");
      const size_t own = static_cast<size_t>(std::max(task.n_keys, task.n_queries) * task.n_values);
      EXPECT_EQ(count(made.prompt, needle),
                own + (task.haystack == RulerTask::Haystack::needles ? 20 : 0));
      // the first and the last sentence of the haystack
      const std::string filler = task.haystack == RulerTask::Haystack::noise ? "The grass is green."
                                 : task.haystack == RulerTask::Haystack::essay ? "Two follows!"
                                                                               : needle;
      const size_t first = made.prompt.find(filler), last = made.prompt.rfind(filler);
      for (size_t a = 0; a < made.answers.size(); ++a) {
        EXPECT_TRUE(std::regex_match(made.answers[a], form)) << made.answers[a];
        EXPECT_EQ(count(made.prompt, " is: " + made.answers[a] + "."), 1u);
        const size_t at = made.prompt.find(made.answers[a]);
        if (task.haystack == RulerTask::Haystack::needles)
          EXPECT_GT(at, last);
        else
          EXPECT_TRUE(depths[a] > 0 ? at > last : at < first);
      }
      EXPECT_EQ(make_ruler(task, 20, 4096, depths, essay, RandomKey(seed)).prompt, made.prompt);
    }
  }
}

TEST(Ruler, VariablesAreOneChain) {
  const RulerExample made = make_ruler(*find_ruler_task("vt"), 30, 4096, {}, {}, RandomKey(3));
  ASSERT_EQ(made.answers.size(), 5u);
  // the solved example first, with names of three letters and its answers
  const std::string own = made.prompt.substr(made.prompt.rfind("Memorize and track"));
  EXPECT_EQ(count(made.prompt, "Memorize and track"), 2u);
  EXPECT_EQ(count(made.prompt, "The grass is green."), 35u);
  EXPECT_TRUE(
      std::regex_search(made.prompt, std::regex("they are: [A-Z]{3}( [A-Z]{3}){4}\nMemorize")));
  std::smatch value;
  ASSERT_TRUE(std::regex_search(own, value, std::regex("VAR ([A-Z]{5}) = ([0-9]{5})\n")));
  EXPECT_EQ(value[1], made.answers[0]);
  EXPECT_NE(own.find("assigned the value " + value[2].str() + " in the text"), std::string::npos);
  size_t at = 0;
  for (size_t i = 1; i < 5; ++i) {
    const size_t next =
        own.find(fmt::format("VAR {} = VAR {} ", made.answers[i], made.answers[i - 1]));
    EXPECT_GT(next, at);
    ASSERT_NE(next, std::string::npos);
    at = next;
  }
}

TEST(Ruler, CommonWordsOccurMoreOften) {
  for (const auto& [length, common, rare, example] :
       {std::tuple{4096, 30, 3, 40}, std::tuple{1024, 6, 1, 20}}) {
    const RulerExample made = make_ruler(*find_ruler_task("cwe"), 50, length, {}, {}, RandomKey(1));
    ASSERT_EQ(made.answers.size(), 10u);
    const auto counts = words_in(made.prompt, "appear most often.\n", "\nQuestion");
    std::map<std::string, int64_t> words;
    for (const auto& [word, n] : counts)
      if (word.back() != '.') words[word] = n;
    EXPECT_EQ(words.size(), 50u);
    for (const auto& [word, n] : words)
      EXPECT_EQ(n, std::count(made.answers.begin(), made.answers.end(), word) > 0 ? common : rare);
    const std::string last = fmt::format(" {}. ", 10 * common + 40 * rare);
    EXPECT_NE(made.prompt.find(last), std::string::npos);
    // the solved example
    EXPECT_EQ(count(made.prompt, "Below is a numbered list"), 2u);
    EXPECT_NE(
        made.prompt.find(fmt::format(" {}. ", example == 40 ? 10 * 10 + 30 * 3 : 10 * 3 + 10)),
        std::string::npos);
  }
  // more words than the dictionary has
  const RulerExample many =
      make_ruler(*find_ruler_task("cwe"), 2500, 100'000, {}, {}, RandomKey(1));
  EXPECT_NE(many.prompt.find(fmt::format(" {}. ", 10 * 30 + 2490 * 3)), std::string::npos);
}

TEST(Ruler, FrequenciesAreThoseOfZipf) {
  for (const auto& [units, wanted] : story()["frequencies"].items()) {
    const RulerExample made =
        make_ruler(*find_ruler_task("fwe"), std::stoll(units), 40 * 50 + 50, {}, {}, RandomKey(5));
    const auto counts = words_in(made.prompt, "coded words. ", "\nQuestion");
    std::vector<int64_t> found, want;
    for (const auto& [word, n] : counts) found.push_back(n);
    std::sort(found.rbegin(), found.rend());
    for (const Json& n : wanted)
      if (n > 0) want.push_back(n.get<int64_t>());
    EXPECT_EQ(found, want) << units;
    EXPECT_EQ(counts.at("..."), want[0]);
    for (size_t a = 0; a < 3; ++a) EXPECT_EQ(counts.at(made.answers.at(a)), want[a + 1]);
  }
}

TEST(Ruler, TheLongestThatFits) {
  const text::Tokenizer bytes = text::byte_tokenizer();
  for (const RulerTask& task : ruler_tasks()) {
    SCOPED_TRACE(task.name);
    const std::vector<double> depths(task.by_depth() ? static_cast<size_t>(task.n_answers()) : 0,
                                     0.5);
    const RulerExample made = make_ruler(task, bytes, 9000, depths, {}, RandomKey(0));
    const auto n = std::ssize(made.prompt) + task.answer_tokens;
    EXPECT_LE(n, 9000);
    EXPECT_GT(n, 8700);
    test::expect_error(ErrorKind::usage, "expected at least",
                       [&] { make_ruler(task, bytes, 200, depths, {}, RandomKey(0)); });
  }
}

}  // namespace
}  // namespace tessera::infer::ruler_test
