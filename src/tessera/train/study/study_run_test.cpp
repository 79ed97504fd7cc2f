#include "tessera/train/study/study_run.h"

#include "tessera/train/train_testing.h"

namespace tessera::train {
namespace {

class StudyRuns : public ::testing::Test {
 protected:
  StudyRuns() {
    folder_.write("text.txt", counting_text(6000));
    folder_.write("base.json", tiny_recipe("text.txt").dump());
  }
  Study study(const std::string& more) const {
    return read_study(json_of(R"({"base": "base.json", "budget": {"steps": 8}, )" + more + "}"),
                      folder_.path());
  }
  const TemporaryFolder folder_;
};

const char* const kPair = R"("entries": [{"name": "silu"}, {"name": "gelu",
    "spec": {"ffn": {"act": "gelu"}}}], "seeds": [1, 2], "learning_rates": "shared")";

/// Without what differs from run to run.
Json timeless(Json report) {
  for (Json& entry : report["entries"]) entry.erase("seconds_per_step"), entry.erase("seconds");
  return report;
}

TEST_F(StudyRuns, EqualModelsDifferByNothingBitForBit) {
  const Study twice = study(R"("entries": [{"name": "a"}, {"name": "b"}, {"name": "wide",
    "set": ["spec.ffn.d_hidden=64"]}], "equal": {"by": "none"}, "seeds": 3,
    "learning_rates": "shared", "evaluate": {"decode": true})");
  const StudyResult result = run_study(twice, folder_ / "out");
  const std::vector<Comparison> compared = comparisons_of(twice, result);
  EXPECT_EQ(compared[0].verdict, "reference");
  EXPECT_EQ(compared[1].difference.mean, 0);
  EXPECT_EQ(compared[1].difference.interval, std::pair(0.0, 0.0));
  EXPECT_EQ(compared[1].verdict, "not significant");
  EXPECT_NE(compared[2].difference.mean, 0);
  EXPECT_EQ(compared[2].difference.pairs, 3);
  EXPECT_EQ(compared[1].crossed->low, 0);
  EXPECT_EQ(compared[1].crossed->high, 0);
  // blocks have the loss of the whole; the last one is shorter than the others
  const std::vector<double>& blocks = result.entries[2].blocks.at(1);
  ASSERT_GT(blocks.size(), 2u);
  double mean = 0;
  for (const double block : blocks) mean += block / static_cast<double>(blocks.size());
  EXPECT_NEAR(mean, *result.entries[2].losses()[1], 0.1);
  EXPECT_LT(compared[2].crossed->low, compared[2].crossed->high);
  EXPECT_GT(*result.entries[0].decode_tokens_per_s, 0);
  // ten evaluations at most, the last at the end
  const Json report = report_json(twice, result);
  EXPECT_EQ(report["entries"][0]["curve"].size(), 8u);
  EXPECT_EQ(report["entries"][0]["runs"][0]["order"], report["entries"][2]["runs"][0]["order"]);
  EXPECT_TRUE(report["fair"]);
  const std::string text = report_text(twice, result), page = report_page(twice, result);
  EXPECT_NE(text.find("not significant"), std::string::npos) << text;
  EXPECT_NE(text.find("note: one learning rate for all models"), std::string::npos) << text;
  for (const char* part : {"valid loss by tokens", "valid loss by FLOPs", "valid loss by seconds",
                           "valid loss by bytes of state", "Differences with 95 % intervals",
                           "prefers-color-scheme:dark", "spec.ffn.d_hidden"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  for (const char* outside : {"<script", "src=", "href="})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  EXPECT_LT(page.size(), size_t{2} << 20);
}

TEST_F(StudyRuns, AKilledStudyIsResumedAndADoneOneIsReused) {
  const Study pair = study(kPair);
  const Json whole = timeless(report_json(pair, run_study(pair, folder_ / "whole")));
  // stopped in the middle of the third run, which is resumed from its checkpoint
  CancelToken token;
  int64_t steps = 0;
  StudyOptions options;
  options.cancel = &token;
  options.on_step = [&](const LogLine&, int64_t) {
    if (++steps == 8 + 8 + 5) token.request();
  };
  expect_error(ErrorKind::cancelled, "", [&] { run_study(pair, folder_ / "cut", options); });
  steps = 0;
  std::vector<std::string> said;
  options = {};
  options.on_step = [&](const LogLine&, int64_t) { ++steps; };
  options.say = [&](const std::string& line) { said.push_back(line); };
  EXPECT_EQ(timeless(report_json(pair, run_study(pair, folder_ / "cut", options))), whole);
  EXPECT_EQ(steps, 3 + 8);
  EXPECT_NE(said.at(0).find("silu/seed=1,lr=0.01,steps=8  valid loss"), std::string::npos)
      << said[0];
  EXPECT_NE(said.at(0).find("already trained"), std::string::npos) << said[0];
  steps = 0;
  EXPECT_EQ(timeless(report_json(pair, run_study(pair, folder_ / "cut", options))), whole);
  EXPECT_EQ(steps, 0);
  // another recipe in the same folder is not taken for it
  Study other = study(std::string(kPair) + R"(, "equal": {"by": "none"})");
  other.entries[0].recipe["train"]["clip_norm"] = 3;
  expect_error(ErrorKind::usage, "is a run of another recipe (train.clip_norm differs)",
               [&] { run_study(other, folder_ / "cut"); });
}

TEST_F(StudyRuns, TrainedModelsAreEvaluatedAtOtherLengths) {
  const Study longer = study(R"("entries": [{"name": "rope"}, {"name": "learned", "spec": {"embed":
    {"type": "token", "position": {"type": "learned", "n_positions": 16}}},
    "set": ["spec.layers[0].mixer.position=none"]}], "equal": {"by": "none"}, "seeds": 2,
    "learning_rates": "shared", "evaluate": {"lengths": [16, 32]},
    "claims": [{"better": "rope", "than": "learned", "paper": "a paper"},
               {"better": "rope", "than": "learned", "length": 32}])");
  std::vector<std::string> said;
  StudyOptions options;
  options.say = [&](const std::string& line) { said.push_back(line); };
  const StudyResult result = run_study(longer, folder_ / "out", options);
  const EntryResult &rope = result.entries[0], &learned = result.entries[1];
  ASSERT_EQ(rope.lengths.size(), 2u);
  ASSERT_EQ(rope.lengths[1].size(), 2u);
  // windows of the trained length are those of the last evaluation
  EXPECT_EQ(rope.lengths[1][0].loss, *rope.losses()[1]);
  EXPECT_NE(rope.lengths[1][1].loss, *rope.losses()[1]);
  EXPECT_EQ(rope.values(ClaimOf::loss, 32)[1], rope.lengths[1][1].loss);
  EXPECT_EQ(rope.values(ClaimOf::accuracy, 16)[0], rope.values(ClaimOf::accuracy, 0)[0]);
  // a table of 16 positions has no more
  ASSERT_EQ(learned.lengths[0].size(), 1u);
  EXPECT_FALSE(learned.values(ClaimOf::loss, 32)[0]);
  EXPECT_GT(rope.seconds, 0);
  const std::vector<ClaimCheck> claims = claims_of(longer, result);
  EXPECT_NEAR(claims.at(0).difference->mean, comparisons_of(longer, result)[1].difference.mean * -1,
              1e-12);
  EXPECT_TRUE(claims[0].interval);
  EXPECT_EQ(claims.at(1).found, "failed");
  const Json report = report_json(longer, result);
  EXPECT_EQ(report["claims"][0]["better"], "rope");
  EXPECT_EQ(report["entries"][0]["runs"][1]["lengths"][1]["valid_loss"], rope.lengths[1][1].loss);
  EXPECT_NE(report_text(longer, result).find("at 32"), std::string::npos);
  EXPECT_NE(report_page(longer, result).find("Claims of papers"), std::string::npos);
  // what is known is not evaluated again
  const auto evaluations = [&] {
    return std::count_if(said.begin(), said.end(), [](const std::string& line) {
      return line.find("rope  at ") != std::string::npos;
    });
  };
  EXPECT_EQ(evaluations(), 4);
  EXPECT_EQ(run_study(longer, folder_ / "out", options).entries[0].lengths[0][1].loss,
            rope.lengths[0][1].loss);
  EXPECT_EQ(evaluations(), 4);
}

TEST_F(StudyRuns, TasksHaveAccuraciesAndLayersGradientNorms) {
  folder_.write("task.json", R"({"extends": "base.json", "data": {"type": "parity", "valid": 32,
    "train": null, "valid_fraction": null},
    "spec": {"vocab": 4}, "watch": {"norms": 4}})");
  const Study task =
      read_study(json_of(R"({"base": "task.json", "budget": {"steps": 8}, "equal": {"by": "none"},
        "entries": [{"name": "a"}, {"name": "b", "set": ["spec.ffn.d_hidden=64"]}], "seeds": 1,
        "learning_rates": "shared", "claims": [{"better": "b", "than": "a", "of": "accuracy"}]})"),
                 folder_.path());
  const StudyResult result = run_study(task, folder_ / "task");
  const Json report = report_json(task, result);
  const Json& entry = report["entries"][0];
  EXPECT_EQ(entry["runs"][0]["accuracy"], *result.entries[0].values(ClaimOf::accuracy, 0)[0]);
  EXPECT_FALSE(entry["runs"][0].contains("bits_per_byte"));
  EXPECT_EQ(report["claims"][0]["found"], "one run");
  ASSERT_GE(entry["gradient_norms"].size(), 2u);
  EXPECT_GT(entry["gradient_norms"][0]["layers"]["layers.1"], 0);
  EXPECT_NE(report_text(task, result).find("accuracy"), std::string::npos);
}

TEST_F(StudyRuns, EveryEntryGetsItsOwnRate) {
  const Study tuned = study(R"("entries": [{"name": "silu"}, {"name": "gelu",
    "spec": {"ffn": {"act": "gelu"}}}], "seeds": [1], "learning_rates": [1e-4, 1e-2, 3e-2])");
  const StudyResult result = run_study(tuned, folder_ / "out");
  for (const EntryResult& entry : result.entries) {
    EXPECT_GE(entry.trials.size(), 3u + 2 + 2);
    EXPECT_GT(entry.facts.rate, 1e-4);
    EXPECT_EQ(entry.runs.at(0)->recipe["optimizer"]["lr"], entry.facts.rate);
    EXPECT_EQ(entry.runs[0]->recipe["train"]["seed"], 1);
  }
  const Json report = report_json(tuned, result);
  EXPECT_EQ(report["entries"][0]["rates"].size(), result.entries[0].trials.size());
  EXPECT_EQ(report["entries"][1]["verdict"], "one run");
}

TEST_F(StudyRuns, ADivergedRunIsAResult) {
  Json base = tiny_recipe("text.txt");
  base["train"]["clip_norm"] = 0;
  base["optimizer"] = {{"type", "sgd"}, {"lr", 1e30}};
  folder_.write("diverging.json", base.dump());
  const Study diverging = study(R"("entries": [{"name": "good"}, {"name": "bad",
    "recipe": "diverging.json"}], "seeds": [1, 2], "learning_rates": "shared")");
  for (int time = 0; time < 2; ++time) {
    const StudyResult result = run_study(diverging, folder_ / "out");
    EXPECT_EQ(comparisons_of(diverging, result)[1].verdict, "failed");
    EXPECT_EQ(result.entries[1].facts.failed.size(), 2u);
    const Json report = report_json(diverging, result);
    EXPECT_FALSE(report["fair"]);
    EXPECT_TRUE(report["entries"][1]["runs"][0]["valid_loss"].is_null());
    EXPECT_NE(report_text(diverging, result).find("unfair: bad, seed 1: [train] step"),
              std::string::npos);
    report_page(diverging, result);
  }
}

TEST_F(StudyRuns, AScalingLawIsFittedOverItsRunsAndResumed) {
  const ScalingStudy scaling =
      read_scaling({json_of(R"({"base": "base.json", "budget": {"steps": 8}, "seeds": [1],
        "learning_rates": "shared", "entries": [{"name": "a"}],
        "scaling": {"sizes": [["spec.d_model=8"], ["spec.d_model=16"], ["spec.d_model=24"]]}})"),
                    folder_.path()});
  StudyOptions options;
  int64_t steps = 0;
  options.times = false;
  options.on_step = [&](const LogLine&, int64_t) { ++steps; };
  const ScalingResult result = run_scaling(scaling, folder_ / "out", options);
  EXPECT_EQ(steps, 3 * (2 + 4 + 8));
  ASSERT_EQ(result.points[0].size(), 9u);
  EXPECT_EQ(result.points[0][4].run.tokens, 4 * 64);
  EXPECT_EQ(result.points[0][5].run.loss, *result.sizes[1].entries[0].losses()[0]);
  EXPECT_TRUE(result.findings.empty());
  const StudyResult report = scaling_report(scaling, result);
  const Json json = report_json(scaling.sizes.back(), report);
  EXPECT_TRUE(json["scaling"]["entries"][0].contains("prediction")) << json["scaling"].dump();
  EXPECT_NE(report_text(scaling.sizes.back(), report).find("Scaling law"), std::string::npos);
  EXPECT_NE(report_page(scaling.sizes.back(), report).find("valid loss by parameters"),
            std::string::npos);
  // what is done is not trained again
  steps = 0;
  EXPECT_EQ(timeless(report_json(
                scaling.sizes.back(),
                scaling_report(scaling, run_scaling(scaling, folder_ / "out", options)))),
            timeless(json));
  EXPECT_EQ(steps, 0);
}

TEST_F(StudyRuns, ALayoutSearchTrainsHalvesAndComparesTheBest) {
  const LayoutSearch search =
      read_search({json_of(R"({"base": "base.json", "budget": {"steps": 8}, "seeds": [1, 2],
        "learning_rates": "shared", "equal": {"multiple_of": 1, "tolerance": 0.05},
        "entries": [{"name": "base"}],
        "search": {"mixers": {"a": "attention", "l": "linear_attention"}, "finalists": 1}})"),
                   folder_.path()});
  StudyOptions options;
  int64_t steps = 0;
  options.times = false;
  options.on_step = [&](const LogLine&, int64_t) { ++steps; };
  const SearchResult found = run_search(search, folder_ / "out", options);
  // 4 candidates for half the budget, 2 for all of it; then two entries with two seeds
  EXPECT_EQ(steps, 4 * 4 + 2 * 8 + 2 * 2 * 8);
  ASSERT_EQ(found.study.entries.size(), 2u);
  EXPECT_EQ(found.study.reference, "base");
  const Json json = report_json(found.study, found.result);
  EXPECT_EQ(json["search"]["candidates"], 4);
  EXPECT_EQ(json["search"]["layouts"][0]["name"], found.study.entries[1].name);
  EXPECT_EQ(json["entries"][1]["difference"]["pairs"], 2);
  EXPECT_NE(report_text(found.study, found.result).find("Layout search: 4 candidates"),
            std::string::npos);
  steps = 0;
  EXPECT_EQ(timeless(report_json(found.study, run_search(search, folder_ / "out", options).result)),
            timeless(json));
  EXPECT_EQ(steps, 0);
}

TEST_F(StudyRuns, TimesAreMeasuredOnce) {
  const Study pair = study(kPair);
  const std::vector<TrialTimes> times = times_of(pair, folder_ / "out");
  ASSERT_EQ(times.size(), 2u);
  EXPECT_GT(times[0].update_seconds, 0);
  EXPECT_GT(times[0].pass_seconds, 0);
  EXPECT_EQ(times[0].passes, 10);  // 600 bytes of validation in windows of 16, 4 at a time
  EXPECT_EQ(times_of(pair, folder_ / "out").at(1).pass_seconds, times[1].pass_seconds);
  EXPECT_EQ(times_of(pair, folder_ / "out").at(1).update_seconds, times[1].update_seconds);
}

TEST_F(StudyRuns, PlansHaveTheTimeOfUpdatesAndEvaluations) {
  const Study pair = study(kPair);
  // (3 + 6) seconds * 8 steps * 2 seeds; evaluated at steps 1 to 7 by 2 passes, at the end by all
  // 10, of half a second
  const std::string text = plan_text(pair, {{3, 0.5, 10}, {6, 0, 10}});
  EXPECT_EQ(seconds_of(pair, pair.entries[0], {3, 0.5, 10}), 2 * (8 * 3 + 0.5 * (7 * 2 + 10)));
  EXPECT_NE(text.find("about 2.8 minutes of training and evaluation"), std::string::npos) << text;
  EXPECT_NE(text.find("equal in parameters"), std::string::npos) << text;
  // a search of 6 rates: 2.5 budgets in 6 + 3 + 2 runs, each evaluated on all data
  const Study tuned = study(R"("entries": [{"name": "a"}, {"name": "b"}], "seeds": 2)");
  EXPECT_EQ(seconds_of(tuned, tuned.entries[0], {3, 0.5, 10}),
            2 * (8 * 3 + 0.5 * (7 * 2 + 10)) + 2.5 * 8 * 3 + 11 * 0.5 * 10);
}

TEST_F(StudyRuns, IntervalsAreThoseOfThePairsThatAreLeft) {
  Study of_three = study(R"("entries": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
    "seeds": 3, "learning_rates": "shared")");
  // losses of seeds 1 to 3, with two blocks each; nothing = failed
  const auto entry = [](const std::vector<std::optional<double>>& losses) {
    EntryResult result;
    for (const std::optional<double>& loss : losses) {
      result.runs.emplace_back();
      result.blocks.emplace_back();
      if (!loss) continue;
      LogLine line;
      line.valid_loss = *loss;
      result.runs.back().emplace().lines = {line};
      result.blocks.back() = {*loss - 0.1, *loss + 0.1};
    }
    return result;
  };
  const auto method = [&](const EntryResult& b, const EntryResult& c) {
    const StudyResult result{{entry({2, 2.1, 2.2}), b, c}, "", ""};
    return interval_method(of_three, comparisons_of(of_three, result));
  };
  const EntryResult whole = entry({1, 1.2, 1.1}), pair = entry({1, 1.2, {}}),
                    one = entry({1, {}, {}}), none = entry({{}, {}, {}});
  EXPECT_EQ(method(whole, whole),
            "95 % intervals: crossed bootstrap over seeds and validation blocks");
  EXPECT_EQ(method(pair, pair), "95 % intervals: Student's t over the seeds");
  EXPECT_EQ(method(whole, pair),
            "95 % intervals: crossed bootstrap over seeds and validation blocks (of c: Student's t "
            "over the seeds)");
  EXPECT_EQ(method(whole, one),
            "95 % intervals: crossed bootstrap over seeds and validation blocks; one pair of runs, "
            "no interval: c");
  EXPECT_EQ(method(none, one), "no pairs of runs of two seeds: no intervals");
  of_three.seeds = {1};
  EXPECT_EQ(method(entry({1}), entry({1})), "one seed: no intervals");
}

}  // namespace
}  // namespace tessera::train
