#include "tessera/train/run_report.h"

#include "tessera/train/run_folder.h"
#include "tessera/train/run_plot.h"
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

TEST(RunReport, TableAndJson) {
  const Setting s;
  const std::string table = table_of(s.runs());
  EXPECT_NE(table.find("x/one  complete   3/3  2.5000      2.2500        2      30        10   3 s\n"),
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
