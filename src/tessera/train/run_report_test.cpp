#include "tessera/train/run_report.h"

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
  EXPECT_NE(table.find("x/one   3/3  2.5000  2.2500        2"), std::string::npos) << table;
  EXPECT_NE(table.find("train.steps"), std::string::npos) << table;
  const spec::Json json = json_of_runs(s.runs());
  EXPECT_EQ(json["runs"][1]["best"]["valid_loss"], 2.25);
  EXPECT_EQ(json["runs"][0]["last"]["step"], 3);
  EXPECT_EQ(json["differences"][2]["key"], "train.steps");
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
  size_t plots = 0;
  for (size_t at = 0; (at = page.find("<svg", at)) != std::string::npos; ++at) ++plots;
  EXPECT_EQ(plots, 3u);
}

TEST(RunReport, RefusesOtherFolders) {
  const Setting s;
  expect_error(ErrorKind::file, "no recipe.json; expected the folder of a run",
               [&] { read_runs({s.folder / "x"}); });
  // one that has not logged yet
  make_run(s.folder, "z", "{}", "");
  EXPECT_NE(table_of(read_runs({s.folder / "z"})).find("z"), std::string::npos);
  EXPECT_NE(page_of(read_runs({s.folder / "z"})).find("<svg"), std::string::npos);
}

}  // namespace
}  // namespace tessera::train::run_report_test
