// Checks of made-up runs: each finding where its cause is, and none in a run without it.
#include "tessera/analysis/run_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "tessera/base/mapped_file.h"
#include "tessera/base/testing.h"
#include "tessera/nn/registry.h"

namespace tessera::analysis::run_check_test {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using train::LogLine;

/// A recipe without faults: 40 tokens per parameter, warm-up, validation.
Json good_recipe() {
  return spec::parse_json(R"({
    "data": {"train": ["none.txt"], "valid_fraction": 0.1, "tokenizer": "bytes", "format": "text"},
    "train": {"steps": 100, "batch": 8, "accumulate": 1, "length": 64, "clip_norm": 1, "seed": 1},
    "optimizer": {"type": "adamw", "lr": 0.001},
    "schedule": {"type": "cosine", "warmup": 10}})",
                          "test");
}

/// Lines of a run that has converged.
std::vector<LogLine> good_lines() {
  std::vector<LogLine> lines;
  for (int64_t step = 1; step <= 100; ++step) {
    LogLine line;
    line.step = step;
    line.loss = 2 + 3 * std::exp(-static_cast<double>(step) / 8);
    line.lr = 0.001;
    line.grad_norm = 0.5 + 0.1 * std::sin(static_cast<double>(step));
    line.tokens = step * 8 * 64;
    if (step % 10 == 0) line.valid_loss = line.loss + 0.05;
    lines.push_back(line);
  }
  return lines;
}

fs::path write_run(const fs::path& folder, const Json& recipe, const std::vector<LogLine>& lines) {
  fs::create_directories(folder);
  std::ofstream(folder / "recipe.json") << recipe.dump();
  std::ofstream log(folder / "log.jsonl");
  for (const LogLine& line : lines) log << train::to_json(line).dump() << "\n";
  return folder;
}

/// The ids of findings, and the text of each.
std::map<std::string, std::string> findings_of(const std::vector<fs::path>& folders) {
  std::map<std::string, std::string> out;
  for (const Finding& one : check_runs(train::read_runs(folders))) out[one.rule->id] = one.found;
  return out;
}

/// Of a run that differs from a good one.
std::map<std::string, std::string> findings_of(
    const std::function<void(Json& recipe, std::vector<LogLine>& lines)>& change) {
  const TemporaryFolder folder;
  Json recipe = good_recipe();
  std::vector<LogLine> lines = good_lines();
  change(recipe, lines);
  return findings_of({write_run(folder / "run", recipe, lines)});
}

TEST(RunCheck, RulesHaveSourcesThatSayIt) {
  std::set<std::string> ids;
  for (const CheckRule& rule : check_rules()) {
    SCOPED_TRACE(rule.id);
    EXPECT_TRUE(ids.insert(rule.id).second);
    EXPECT_FALSE(rule.evidence.empty());
    for (const Evidence& one : rule.evidence) {
      EXPECT_NE(one.page.empty(), one.paper.empty());
      if (!one.page.empty())
        EXPECT_THAT(read_text_file(fs::path(TESSERA_SOURCE_DIR) / "docs" / one.page),
                    HasSubstr(one.says));
      else
        EXPECT_EQ(one.paper.rfind("arXiv:", 0), 0U);
    }
  }
}

TEST(RunCheck, AGoodRunHasNoFinding) {
  EXPECT_THAT(findings_of([](Json&, auto&) {}), IsEmpty());
}

TEST(RunCheck, LossesAndGradients) {
  auto got = findings_of([](Json&, auto& lines) {
    for (size_t i = 60; i < 100; ++i) lines[i].loss = 5;
  });
  EXPECT_THAT(got["diverges"], HasSubstr("mean loss 5.000 at the end, 2.0"));
  got = findings_of([](Json&, auto& lines) {
    for (size_t i = 0; i < 100; ++i)
      if (lines[i].valid_loss) *lines[i].valid_loss += i > 50 ? 0.004 * (i - 50) : 0;
  });
  EXPECT_EQ(got.size(), 1U);
  EXPECT_THAT(got["overfits"], HasSubstr("at step 50, 2.2"));
  got = findings_of([](Json&, auto& lines) { lines[70].grad_norm = 20, lines[80].grad_norm = 9; });
  EXPECT_EQ(got.size(), 1U);
  EXPECT_THAT(got["spikes"], HasSubstr("2 of 90 logged norms above 5 times the median"));
  EXPECT_THAT(got["spikes"], HasSubstr("; 20 at step 71"));
  got = findings_of([](Json&, auto& lines) {
    for (LogLine& line : lines) line.grad_norm += 1;
  });
  EXPECT_EQ(got.size(), 1U);
  EXPECT_THAT(got["clipped"], HasSubstr("90 of 90 logged updates"));
  got = findings_of([](Json&, auto& lines) {
    for (size_t i = 0; i < 100; ++i) {
      lines[i].loss = 5 - 0.02 * static_cast<double>(i);
      if (lines[i].valid_loss) lines[i].valid_loss = lines[i].loss;
    }
  });
  EXPECT_EQ(got.size(), 1U);
  EXPECT_THAT(got["still_falling"], HasSubstr("validation loss 3.4200 at step 80, 3.0200"));
  got = findings_of([](Json&, auto& lines) {
    lines[3].warnings = {"loss spike"};
    lines[9].alarms = {"router"};
  });
  EXPECT_EQ(got["warnings"], "2 in the log; step 4: loss spike");
}

TEST(RunCheck, RecipeDataAndSize) {
  auto got = findings_of([](Json& recipe, auto&) { recipe["schedule"]["warmup"] = 0; });
  EXPECT_EQ(got["no_warmup"],
            "schedule.warmup = 0 with optimizer adamw, learning rate 0.001 from step 1");
  got = findings_of([](Json& recipe, auto& lines) {
    recipe["data"]["valid_fraction"] = 0;
    for (LogLine& line : lines) line.valid_loss.reset();
  });
  EXPECT_EQ(got["no_validation"], "neither data.valid nor data.valid_fraction");
  got = findings_of([](Json& recipe, auto&) { recipe["train"]["steps"] = 1000; });
  EXPECT_EQ(got["cut"], "100 of 1000 steps, learning rate 0.001");
  got = findings_of([](Json&, auto& lines) {
    for (LogLine& line : lines) line.tokens /= 4;
  });
  EXPECT_EQ(got["few_targets"], "25 % of batch x length tokens are targets; 128 of 512 per update");
  got = findings_of([](Json&, auto& lines) { lines[90].noise_scale = 5120; });
  EXPECT_THAT(got["batch"], HasSubstr("5.12e+03 tokens, 512 tokens per update: a larger batch"));
  got = findings_of([](Json&, auto& lines) { lines[90].noise_scale = 700; });
  EXPECT_THAT(got, IsEmpty());
  got = findings_of([](Json&, auto& lines) {
    lines[99].experts = {{"layers.0.ffn.router", {{"load", {0.9, 0.04, 0.03, 0.01, 0.02}}}}};
  });
  EXPECT_THAT(got["experts_uneven"],
              HasSubstr("the busiest of 5 experts has 4.5 times an even share, 1 have"));
  // 6,720 parameters and 51,200 tokens; a file of 6,400 bytes, a tenth of them held out
  const TemporaryFolder folder;
  const std::string text = folder.write("text.txt", std::string(6400, 'a'));
  nn::register_mechanisms();
  got = findings_of([&](Json& recipe, auto&) {
    recipe["data"]["train"] = {text};
    recipe["spec"] = spec::parse_json(
        R"({"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 16,
            "layers": [{"mixer": {"type": "attention", "n_heads": 2}}],
            "ffn": {"type": "glu", "d_hidden": 32}, "head": {"type": "tied"}})",
        "test");
  });
  EXPECT_THAT(got["many_epochs"], HasSubstr("8.9 epochs over 5.76e+03 tokens"));
  EXPECT_THAT(got["few_tokens"], HasSubstr("tokens per parameter, below 20"));
}

TEST(RunCheck, TheBestRateIsInsideItsGrid) {
  const TemporaryFolder folder;
  const auto grid = [&](const std::string& name, const std::vector<double>& losses) {
    for (size_t i = 0; i < losses.size(); ++i)
      for (const int seed : {1, 2}) {
        Json recipe = good_recipe();
        recipe["optimizer"]["lr"] = 0.001 * std::pow(3, static_cast<double>(i));
        recipe["train"]["seed"] = seed;
        auto lines = good_lines();
        for (LogLine& line : lines)
          if (line.valid_loss) *line.valid_loss += losses[i];
        write_run(folder / name / fmt::format("lr={},seed={}", i, seed), recipe, lines);
      }
    return findings_of({folder / name});
  };
  EXPECT_THAT(grid("inside", {0.2, 0.1, 0.3}), IsEmpty());
  EXPECT_THAT(grid("end", {0.3, 0.2, 0.1})["rate_at_the_end"],
              HasSubstr("0.009 is the largest of 3 rates (0.001: 2."));
  EXPECT_THAT(grid("begin", {0.1, 0.2})["rate_at_the_end"], HasSubstr("0.001 is the smallest"));
}

TEST(RunCheck, FilesOfOtherShapesAreNoCrash) {
  for (const char* recipe : {"{}", "[]", R"({"optimizer": 1, "train": [], "data": "x"})",
                             R"({"optimizer": {"lr": 1}, "train": {"steps": "x"}})"}) {
    const TemporaryFolder folder;
    write_run(folder / "run", spec::parse_json(recipe, "test"), good_lines());
    findings_of({folder / "run"});
  }
  const TemporaryFolder folder;
  EXPECT_THAT(findings_of({write_run(folder / "run", good_recipe(), {})}), IsEmpty());
}

}  // namespace
}  // namespace tessera::analysis::run_check_test
