// Advice: its data hold together, its evidence stands where it says, questions get the candidates
// that their rules and limits leave.
#include "tessera/analysis/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/nn/registry.h"

namespace tessera::analysis::advice_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

const Candidate& named(const std::vector<Candidate>& list, const std::string& name) {
  const auto at =
      std::find_if(list.begin(), list.end(), [&](const Candidate& c) { return c.name == name; });
  if (at == list.end()) throw std::runtime_error("no candidate " + name);
  return *at;
}

std::set<std::string> ids(const std::vector<const Rule*>& rules) {
  std::set<std::string> out;
  for (const Rule* rule : rules) out.insert(rule->id);
  return out;
}

Cost cost_of(const std::string& mechanism, std::vector<Point> points) {
  nn::register_mechanisms();
  Cost out;
  out.mechanism = spec::find_mechanism(spec::Slot::mixer, mechanism);
  out.curves = {{Pass::forward, std::move(points), ""}};
  return out;
}

TEST(AdviceData, EveryRuleHasEvidenceAndTagsOfSomeTemplate) {
  const AdviceData& data = advice_data();
  std::set<std::string> tags, tasks, needs, rules;
  for (const Template& one : data.templates) tags.insert(one.tags.begin(), one.tags.end());
  for (const auto& one : data.tasks) tasks.insert(one.name);
  for (const auto& one : data.needs) needs.insert(one.name);
  for (const Rule& rule : data.rules) {
    SCOPED_TRACE(rule.id);
    EXPECT_TRUE(rules.insert(rule.id).second);
    EXPECT_FALSE(rule.evidence.empty());
    EXPECT_FALSE(rule.prefer.empty() && rule.avoid.empty());
    EXPECT_FALSE(rule.when.empty());
    for (const auto* list : {&rule.prefer, &rule.avoid})
      for (const std::string& tag : *list) EXPECT_THAT(tags, Contains(tag));
    if (rule.when.contains("tasks")) {
      for (const Json& task : rule.when["tasks"])
        EXPECT_THAT(tasks, Contains(task.get<std::string>()));
    }
    if (rule.when.contains("need")) {
      EXPECT_THAT(needs, Contains(rule.when["need"].get<std::string>()));
    }
  }
  for (const std::string& need : needs)
    EXPECT_TRUE(std::any_of(data.rules.begin(), data.rules.end(), [&](const Rule& rule) {
      return rule.when.value("need", "") == need;
    })) << need;
}

TEST(AdviceData, MeasuredEvidenceStandsOnItsPage) {
  for (const Rule& rule : advice_data().rules)
    for (const Evidence& one : rule.evidence) {
      SCOPED_TRACE(rule.id);
      if (one.page.empty()) {
        EXPECT_TRUE(one.paper.starts_with("arXiv:")) << one.paper;
        EXPECT_FALSE(one.title.empty());
        continue;
      }
      const std::filesystem::path page =
          std::filesystem::path(TESSERA_SOURCE_DIR) / "docs" / one.page;
      ASSERT_TRUE(std::filesystem::exists(page)) << page;
      EXPECT_FALSE(one.says.empty());
      EXPECT_THAT(read_text_file(page.string()), HasSubstr(one.says));
    }
}

// every template is a valid spec of the size asked for, and its times were measured
TEST(Advise, EveryTemplateReachesTheSizesOfTheTable) {
  for (const double parameters : {1e7, 5e7, 1e8, 4e8, 1e9, 7e9})
    for (const AdviceData::Task& task : advice_data().tasks) {
      const std::vector<Candidate> all = advise({.task = task.name,
                                                 .length = 512,
                                                 .parameters = parameters,
                                                 .vocab = parameters < 5e7 ? 256 : 32000});
      for (const Candidate& c : all) {
        SCOPED_TRACE(fmt::format("{} {} {:g}", task.name, c.name, parameters));
        if (!c.excluded.empty()) {
          EXPECT_THAT(c.excluded, HasSubstr("takes"));  // by its arch alone
          continue;
        }
        EXPECT_NEAR(static_cast<double>(c.plan.parameters), parameters, 0.05 * parameters);
        EXPECT_TRUE(c.time.has_value());
        EXPECT_FALSE(c.extrapolated);
      }
      EXPECT_TRUE(all.front().excluded.empty()) << task.name;
    }
}

TEST(Advise, FullAttentionIsFirstForShortTextsOnly) {
  const std::vector<Candidate> brief = advise({.task = "chat", .length = 512});
  EXPECT_THAT(ids(brief.front().preferred_by), Contains("short_text"));
  EXPECT_NEAR(named(brief, "transformer").time.value(), 1, 1e-12);
  const std::vector<Candidate> extended = advise({.task = "chat", .length = 32768});
  EXPECT_THAT(ids(extended.front().preferred_by), Contains("long_text"));
  EXPECT_LT(named(extended, "mamba2").time.value(), 0.2);
  EXPECT_TRUE(named(extended, "mamba2").extrapolated);
}

TEST(Advise, ExactRecallOverLongTextsKeepsSomeFullAttention) {
  const std::vector<Candidate> all =
      advise({.task = "chat", .length = 32768, .needs = {"exact_recall"}});
  EXPECT_TRUE(all.front().name.starts_with("hybrid_")) << all.front().name;
  EXPECT_THAT(ids(named(all, "mamba2").avoided_by), Contains("long_recall"));
  EXPECT_THAT(ids(named(all, "linear_attention").avoided_by), Contains("exact_recall"));
}

TEST(Advise, LabelsAndVectorsTakeAnEncoderAndTargetsAnEncoderDecoder) {
  for (const char* task :
       {"classification", "token_classification", "question_answering", "embeddings"})
    EXPECT_TRUE(advise({.task = task, .length = 512}).front().name.starts_with("encoder")) << task;
  for (const char* task : {"translation", "summarization"})
    EXPECT_EQ(advise({.task = task, .length = 512}).front().name, "encoder_decoder") << task;
}

TEST(Advise, MemoryExcludesWhatNeedsMore) {
  // weights alone: 200 MB
  const std::vector<Candidate> all =
      advise({.task = "chat", .length = 131072, .parameters = 1e8, .memory = 4e8, .sequences = 1});
  EXPECT_THAT(named(all, "transformer_mha").excluded, HasSubstr("bytes of memory"));
  const Candidate& state = named(all, "gated_delta_net");
  EXPECT_EQ(state.excluded, "");
  EXPECT_LE(state.bytes, 4e8);
  EXPECT_EQ(state.bytes, 2.0 * static_cast<double>(state.plan.parameters) +
                             static_cast<double>(state.plan.state_bytes));
}

// the figures of docs/guide/choosing.md
TEST(Advise, TheWorkedCaseOfLongDocuments) {
  const std::vector<Candidate> all = advise({.task = "summarization",
                                             .length = 100000,
                                             .parameters = 5e8,
                                             .memory = 4e9,
                                             .needs = {"exact_recall"}});
  EXPECT_EQ(all.front().name, "hybrid_mamba2");
  EXPECT_NEAR(all.front().time.value(), 0.14, 0.005);
  EXPECT_NEAR(all.front().bytes, 1.3e9, 0.05e9);
  EXPECT_THAT(named(all, "transformer_mha").excluded, HasSubstr("1.083e+10 bytes of memory"));
}

TEST(Advise, LearnedPositionsExcludeLongerTexts) {
  const std::vector<Candidate> all = advise({.task = "classification", .length = 1024});
  EXPECT_EQ(named(all, "encoder_fourier").excluded, "at most 512 tokens");
}

TEST(Advise, NamesAreCheckedAndTheNearestOneIsNamed) {
  test::expect_error(ErrorKind::usage, "did you mean \"chat\"", [] { advise({.task = "chatt"}); });
  test::expect_error(ErrorKind::usage, "exact_recall", [] { advise({.needs = {"recall"}}); });
  test::expect_error(ErrorKind::usage, "expected at most", [] { advise({.parameters = 1e13}); });
}

TEST(Advise, TheFirstOfTheListIsOnTheParetoFront) {
  for (const int64_t length : {256, 4096, 65536}) {
    const std::vector<Candidate> all = advise({.task = "chat", .length = length});
    EXPECT_TRUE(all.front().pareto);
    for (const Candidate& c : all)
      if (c.excluded.empty() && !c.pareto) {  // some other one is at least as good in all three
        EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const Candidate& other) {
          return other.pareto && other.score >= c.score && *other.time <= *c.time &&
                 other.bytes <= c.bytes;
        })) << c.name;
      }
  }
}

// t = 2 T^2 and T: 3 T^1 between the points, T^2 beyond
TEST(TimeAt, InterpolatesLogarithmsAndExtrapolatesTheFit) {
  Curve square{Pass::forward, {}, ""};
  for (const int64_t t : {256, 1024, 2048, 4096})
    square.points.push_back({t, 2e-9 * static_cast<double>(t * t), 1});
  EXPECT_NEAR(time_at(square, 512, 1024)->seconds, 2e-9 * 512 * 512, 1e-15);
  EXPECT_FALSE(time_at(square, 4096, 1024)->extrapolated);
  EXPECT_NEAR(time_at(square, 4096, 1024)->seconds, 2e-9 * 4096 * 4096, 1e-15);
  EXPECT_NEAR(time_at(square, 16384, 1024)->seconds, 2e-9 * 16384 * 16384, 1e-12);
  EXPECT_TRUE(time_at(square, 16384, 1024)->extrapolated);
  EXPECT_NEAR(time_at(square, 64, 1024)->seconds, 2e-9 * 64 * 64, 1e-15);
  EXPECT_FALSE(time_at({Pass::forward, {{256, 1, 1}}, ""}, 256, 1024).has_value());
}

// T^2 against 1000 T: equal at 1,000 tokens; powers are exact in the logarithms
TEST(Crossover, IsWhereTheRatioOfTimesBecomesOne) {
  std::vector<Point> square, line, fast, slow;
  for (const int64_t t : {256, 512, 2048, 4096}) {
    const auto x = static_cast<double>(t);
    square.push_back({t, x * x, 1});
    line.push_back({t, 1000 * x, 1});
    fast.push_back({t, 100 * x, 1});
    slow.push_back({t, 10000 * x, 1});
  }
  const Cost attention = cost_of("attention", square);
  const Crossover at = crossover(attention, cost_of("mamba2", line), Pass::forward);
  EXPECT_NEAR(at.length.value(), 1000, 1e-6);
  EXPECT_EQ(at.title, "mixer/mamba2");
  EXPECT_FALSE(at.from_start);
  EXPECT_TRUE(crossover(attention, cost_of("gla", fast), Pass::forward).from_start);
  const Crossover never = crossover(attention, cost_of("gla", slow), Pass::forward);
  EXPECT_FALSE(never.length.has_value());
  EXPECT_EQ(never.longest, 4096);
  EXPECT_EQ(crossover(attention, cost_of("gla", line), Pass::backward).longest, 0);
}

}  // namespace
}  // namespace tessera::analysis::advice_test
