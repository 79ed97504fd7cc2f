#include "tessera/train/runs/run_report.h"

#include "tessera/model/plan.h"

#include "tessera/train/runs/run_folder.h"
#include "tessera/train/runs/run_plot.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::run_report_test {
namespace {

namespace fs = std::filesystem;

void make_run(const TemporaryFolder& folder,
              const std::string& name,
              const char* recipe,
              const std::string& log) {
  fs::create_directories(folder / name);
  folder.write(name + "/recipe.json", recipe);
  folder.write(name + "/log.jsonl", log);
}

const char* kLog =
    "{\"step\": 1, \"loss\": 3.0, \"tokens\": 10, \"seconds\": 1}\n"
    "{\"step\": 2, \"loss\": 2.0, \"tokens\": 20, \"seconds\": 2, \"valid_loss\": 2.25}\n"
    "{\"step\": 3, \"loss\": 2.5, \"tokens\": 30, \"seconds\": 3, \"valid_loss\": 2.75}\n";

struct Setting {
  TemporaryFolder folder;
  Setting() {
    make_run(folder, "x/one", R"({"train": {"steps": 3}, "optimizer": {"lr": 0.1}, "b": [1]})",
             kLog);
    // a line that is being written
    make_run(folder, "y/one",
             R"({"train": {"steps": 9}, "optimizer": {"type": "<lion>"}, "b": [1]})",
             std::string(kLog) + "{\"step\": 4, \"lo");
  }
  std::vector<RunRecord> runs() const { return read_runs({folder / "x/one", folder / "y/one/"}); }
};

TEST(RunReport, ReadsRunsThatAreStillWritten) {
  const Setting s;
  const auto runs = s.runs();
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].name, "x/one");
  EXPECT_EQ(runs[1].name, "y/one");
  EXPECT_EQ(runs[1].lines.size(), 3u);
  EXPECT_EQ(runs[1].best()->step, 2);
  EXPECT_EQ(read_runs({s.folder / "x/one"})[0].name, "one");
}

TEST(RunReport, SaysWhereRecipesDiffer) {
  const Setting s;
  const auto keys = differences(s.runs());
  ASSERT_EQ(keys.size(), 3u);
  EXPECT_EQ(keys[0].key, "optimizer.lr");
  EXPECT_EQ(keys[0].values, (std::vector<std::string>{"0.1", ""}));
  EXPECT_EQ(keys[1].key, "optimizer.type");
  EXPECT_EQ(keys[2].values, (std::vector<std::string>{"3", "9"}));
}

TEST(RunReport, OnlyWhatWasWrittenDiffers) {
  const TemporaryFolder folder;
  make_run(folder, "a",
           R"({"train": {"steps": 3, "batch": 2}, "optimizer": {"lr": 0.1},
               "data": {"type": "mqar", "items": 8}, "spec": {"layers": [{"x": 1}, {"x": 1}]}})",
           kLog);
  folder.write("a/written.json", R"({"train": {"steps": 3}, "optimizer": {"lr": 0.1},
                                     "spec": {"depth": 1}, "data": {"type": "mqar"}})");
  make_run(folder, "b",
           R"({"train": {"steps": 3, "batch": 4}, "optimizer": {"lr": 0.2},
               "data": {"train": ["x"], "format": "text"}, "spec": {"layers": [{"x": 1}]}})",
           kLog);
  folder.write("b/written.json",
               R"({"train": {"steps": 3}, "spec": {"depth": 2}, "data": {"train": ["x"]}})");
  const auto keys = differences(read_runs({folder / "a", folder / "b"}));
  std::vector<std::string> names;
  for (const KeyDifference& key : keys) names.push_back(key.key);
  EXPECT_EQ(names,
            (std::vector<std::string>{"data.train", "data.type", "optimizer.lr", "spec.depth"}));
  // one that only the other wrote: the default in force
  EXPECT_EQ(keys[2].values, (std::vector<std::string>{"0.1", "0.2"}));
  EXPECT_EQ(keys[3].values, (std::vector<std::string>{"1", "2"}));
}

TEST(RunReport, SeedsAreGroupedWithMeanAndDeviation) {
  const TemporaryFolder folder;
  const auto run = [&](const char* name, int seed, double lr, double valid) {
    make_run(folder, name,
             fmt::format(R"({{"train": {{"steps": 1, "seed": {}}}, "optimizer": {{"lr": {}}}}})",
                         seed, lr)
                 .c_str(),
             fmt::format("{{\"step\": 1, \"loss\": 1, \"tokens\": 1, \"valid_loss\": {}, "
                         "\"accuracy\": 0.5}}\n",
                         valid));
  };
  run("a", 1, 0.1, 2), run("b", 2, 0.1, 3), run("c", 3, 0.1, 4), run("d", 1, 0.2, 9);
  const auto runs = read_runs({folder.path()});
  const auto groups = seed_groups(runs);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].runs, (std::vector<size_t>{0, 1, 2}));
  const std::string table = table_of(runs);
  EXPECT_NE(table.find("a, b, c (3 seeds): accuracy 0.5000 +- 0.0000, best valid 3.0000 +- 1.0000, "
                       "loss 1.0000 +- 0.0000\n"),
            std::string::npos)
      << table;
  EXPECT_EQ(json_of_runs(runs)["seeds"][0]["best valid"]["deviation"], 1.0);
}

TEST(RunReport, ColumnsOfCostsAndUnits) {
  const TemporaryFolder folder;
  Json recipe = resolve(read_recipe(tiny_recipe("x"), ""));
  make_run(folder, "a", recipe.dump().c_str(), kLog);
  const auto runs = read_runs({folder / "a"});
  const RunCosts costs = costs_of(runs[0]);
  EXPECT_EQ(costs.parameters, 256 * 16 + 2 * (4 * 16 * 16 + 3 * 16 * 32 + 2 * 16) + 16);
  // forward and backward of 3 steps of 4 windows of 16 tokens
  const double a_token =
      model::make_plan(read_recipe(tiny_recipe("x"), "").spec, 16).flops_per_token;
  EXPECT_DOUBLE_EQ(costs.flops, 3 * a_token * 3 * 4 * 16);
  EXPECT_NE(table_of(runs).find("parameters"), std::string::npos) << table_of(runs);
  EXPECT_NE(table_of(runs).find("0.01\n"), std::string::npos) << table_of(runs);
  make_run(folder, "b", R"({"objective": {"type": "classification"}})", kLog);
  EXPECT_NE(table_of(read_runs({folder / "b"})).find("examples  examples/s"), std::string::npos);
  EXPECT_EQ(table_of(read_runs({folder / "b"})).find("tokens"), std::string::npos);
  EXPECT_NE(table_of(read_runs({folder / "a", folder / "b"})).find("seen/s"), std::string::npos);
}

TEST(RunReport, TableAndJson) {
  const Setting s;
  const std::string table = table_of(s.runs());
  EXPECT_NE(
      table.find("x/one  complete   3/3  2.5000      2.2500        2      30        10   3 s"),
      std::string::npos)
      << table;
  EXPECT_NE(table.find("y/one       cut   3/9"), std::string::npos) << table;
  EXPECT_NE(table.find("train.steps"), std::string::npos) << table;
  EXPECT_EQ(table.find("accuracy"), std::string::npos) << "no run has one";
  EXPECT_EQ(table_of(s.runs(), 1).find("train.steps"), std::string::npos);
  EXPECT_NE(table_of(s.runs(), 1).find("\n2 more: --html or --json has them\n"), std::string::npos);
  const spec::Json json = json_of_runs(s.runs());
  EXPECT_EQ(json["runs"][1]["best"]["valid_loss"], 2.25);
  EXPECT_EQ(json["runs"][0]["last"]["step"], 3);
  EXPECT_EQ(json["runs"][0]["state"], "complete");
  EXPECT_EQ(json["differences"][2]["key"], "train.steps");
}

TEST(RunReport, SaysWhatARunWarnedOfLast) {
  const Setting s;
  make_run(s.folder, "w", "{}",
           R"({"step": 1, "loss": 1, "alarms": ["old"]})"
           "\n"
           R"({"step": 2, "loss": 1, "alarms": ["a <b>"]})"
           "\n");
  const auto runs = read_runs({s.folder / "w"});
  EXPECT_NE(table_of(runs).find("\nw: step 2: a <b>\n"), std::string::npos) << table_of(runs);
  EXPECT_EQ(table_of(runs).find("old"), std::string::npos);
  EXPECT_NE(page_of(runs).find("w: step 2: a &lt;b&gt;"), std::string::npos);
}

TEST(RunReport, ARunThatTrainsSaysWhatIsLeft) {
  if (!fs::exists("/proc/locks")) GTEST_SKIP() << "no /proc/locks";
  const Setting s;
  const RunLock lock(s.folder / "y/one");
  const std::string table = table_of(s.runs());
  EXPECT_NE(table.find("y/one   running   3/9"), std::string::npos) << table;
  EXPECT_NE(table.find("   3 s   6 s\n"), std::string::npos) << table;
}

size_t count(const std::string& text, const std::string& of) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(of, at)) != std::string::npos; at += of.size()) ++n;
  return n;
}

TEST(RunReport, APageNeedsNothingFromElsewhere) {
  const Setting s;
  const std::string page = page_of(s.runs(), 3);
  EXPECT_NE(page.find("http-equiv=\"refresh\" content=\"3\""), std::string::npos);
  EXPECT_EQ(page_of(s.runs()).find("refresh"), std::string::npos);
  for (const char* outside : {"src=", "href=", "<script", "url("})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  EXPECT_EQ(page.find("<lion>"), std::string::npos);
  EXPECT_NE(page.find("&lt;lion&gt;"), std::string::npos);
  for (const char* plot : {"loss by steps", "loss by tokens", "loss by seconds", "lr by steps",
                           "grad_norm by steps", "tokens_per_s by steps"})
    EXPECT_EQ(count(page, std::string("aria-label=\"") + plot + "\""), 1u) << plot;
  EXPECT_EQ(count(page, "role=\"img\""), 6u);
  // two runs with two validations each, in three plots
  EXPECT_EQ(count(page, "<circle"), 12u);
}

/// Where a point stands: the frame is 392 wide from 56 on and 240 high from 12 on, and holds values
/// from 1 to 3 with a twentieth of their range around them.
TEST(RunPlot, PlacesPoints) {
  const std::string svg = plot_of("x", "y", {{0, "a", {{0, 1}, {5, 3}, {10, 2}}, false}});
  EXPECT_NE(svg.find("points=\"56.0,241.1 252.0,22.9 448.0,132.0\""), std::string::npos) << svg;
}

TEST(RunPlot, AxesSayThousands) {
  const std::string svg = plot_of("x", "y", {{0, "a", {{0, 1}, {150000, 3}}, false}});
  for (const char* tick : {">0<", ">50k<", ">100k<", ">150k<", ">2.5<"})
    EXPECT_NE(svg.find(tick), std::string::npos) << tick;
}

TEST(RunPlot, CutsOffABeginningAndThinsOut) {
  // 100 at first, then 1 and 3 in turn: the frame is made for the latter
  Curve curve{0, "a", {{0, 100}}, false};
  for (int i = 1; i <= 10000; ++i) curve.points.emplace_back(i, i % 2 == 0 ? 1 : 3);
  const std::string svg = plot_of("x", "y", {curve});
  EXPECT_NE(svg.find(",22.9"), std::string::npos);
  EXPECT_NE(svg.find(",241.1"), std::string::npos);
  EXPECT_LT(svg.size(), 16000u);  // of 10001 points of 12 letters each
}

TEST(RunReport, RefusesOtherFolders) {
  const Setting s;
  expect_error(ErrorKind::file, "No such file or directory; expected the folder of a run",
               [&] { read_runs({s.folder / "nowhere"}); });
  fs::create_directories(s.folder / "empty");
  expect_error(ErrorKind::file, "no recipe.json; expected the folder of a run",
               [&] { read_runs({s.folder / "empty"}); });
  // runs below it, one that has not logged yet
  fs::create_directories(s.folder / "x/two");
  s.folder.write("x/two/recipe.json", "{}");
  const auto runs = read_runs({s.folder / "x"});
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[1].name, "two");
  EXPECT_NE(table_of(runs).find("two"), std::string::npos);
  EXPECT_NE(page_of({runs[1]}).find("<svg"), std::string::npos);
}

}  // namespace
}  // namespace tessera::train::run_report_test
