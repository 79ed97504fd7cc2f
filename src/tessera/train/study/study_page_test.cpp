#include "tessera/train/study/study_page.h"

#include "tessera/nn/registry.h"
#include "tessera/train/study/study.h"
#include "tessera/train/train_testing.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

const char* const kReport =
    R"({"reference": "a", "equal": {"by": "none", "text": "sizes are not matched"},
  "seeds": [1, 2], "intervals": "95 % intervals: Student's t over the seeds", "machine": "one, 1 threads",
  "command": "tessera compare s.json --out out/s", "findings": [{"check": "rate", "unfair": true, "text": "b: at an end"}],
  "claims": [{"better": "a", "than": "b", "of": "loss", "length": 128, "paper": "arXiv:1706.03762",
              "difference": -0.25, "interval": [-0.5, 0.125], "found": "not significant"}],
  "entries": [
    {"name": "a", "parameters": 10, "flops_per_token": 2000, "state_bytes": 1500, "steps": 4, "verdict": "reference",
     "learning_rate": 0.002, "seconds_per_step": 0.5, "seconds": 90,
     "gradient_norms": [{"step": 1, "layers": {"embed": 1, "layers.0": 4, "layers.10": 2, "layers.9": 3}}],
     "runs": [{"seed": 1, "valid_loss": 2, "bits_per_byte": 3, "lengths": [{"length": 128, "valid_loss": 2.5, "accuracy": 0}]},
              {"seed": 2, "valid_loss": 3, "bits_per_byte": 4, "lengths": [{"length": 128, "valid_loss": 4.5, "accuracy": 0}]}]},
    {"name": "b", "parameters": 12, "flops_per_token": 4000, "state_bytes": 0, "steps": 4, "verdict": "worse",
     "learning_rate": 0.004, "seconds_per_step": 1.5, "seconds": 30, "rate_at_end": true,
     "difference": {"mean": 0.5, "interval": [0.25, 0.75]},
     "runs": [{"seed": 1, "valid_loss": 3, "bits_per_byte": 5}, {"seed": 2, "valid_loss": null}]}]})";

TEST(StudyPage, TablesHaveTheNumbersOfTheReport) {
  const std::string page = study_markdown(json_of(kReport), "report.json");
  for (const char* line :
       {"| `a` | 2.500 | 0.707 | 3.500 |  |  | reference | 3.500 |",
        "| `b` | 3.000 |  | 5.000 | +0.500 | \\[+0.250, +0.750\\] | worse | refused |",
        "| `a` better than `b` in loss at 128 tokens | "
        "[arXiv:1706.03762](https://arxiv.org/abs/1706.03762) | -0.250 | \\[-0.500, +0.125\\] | "
        "did not appear: not significant |",
        "| `b` | 12 | 4k | 0 B | 0.004 (end) | 4 |",
        "| entry | step | layer 1 | layer 2 | layer 3 | last / first |",
        "| `a` | 1 | 4 | 3 | 2 | 0.50 |", "    tessera compare s.json --out out/s",
        "took 2 minutes", "- unfair: b: at an end"})
    EXPECT_NE(page.find(line), std::string::npos) << line << "\n" << page;
  expect_error(ErrorKind::file, "x.json",
               [] { study_markdown(json_of(R"({"entries": 1})"), "x.json"); });
  Json nobody = json_of(kReport);
  nobody["reference"] = "c";
  expect_error(ErrorKind::file, "x.json] reference \"c\": no entry has this name",
               [&] { study_markdown(nobody, "x.json"); });
}

TEST(StudyPage, TheFigureHasTheBestFirst) {
  Json report = json_of(kReport);
  const std::string figure = study_figure(report, "report.json");
  EXPECT_LT(figure.find(">a<"), figure.find(">b<"));
  EXPECT_NE(figure.find("128 tokens"), std::string::npos);
  // of a task the largest accuracy
  report["entries"][1]["runs"] = json_of(R"([{"seed": 1, "valid_loss": 9, "accuracy": 0.75}])");
  report["entries"][0]["runs"] = json_of(R"([{"seed": 1, "valid_loss": 1, "accuracy": 0.5}])");
  const std::string task = study_figure(report, "report.json");
  EXPECT_GT(task.find(">a<"), task.find(">b<"));
  EXPECT_NE(task.find("accuracy; right is better"), std::string::npos);
}

/// Labels of the grid lines, from left to right.
std::vector<std::string> ticks_of(const std::string& figure) {
  std::vector<std::string> out;
  const std::string mark = "class=\"grid\"/><text ";
  for (size_t at = figure.find(mark); at != std::string::npos; at = figure.find(mark, at + 1)) {
    const size_t begin = figure.find('>', at + mark.size()) + 1;
    out.push_back(figure.substr(begin, figure.find('<', begin) - begin));
  }
  return out;
}

TEST(StudyPage, TicksAreRoundNumbers) {
  using Ticks = std::vector<std::string>;
  Json report = json_of(kReport);
  const std::string figure = study_figure(report, "report.json");
  EXPECT_EQ(ticks_of(figure), (Ticks{"2", "2.5", "3", "3.5"})) << figure;
  // from 1.955 to 3.545, on a line of 190 to 656
  EXPECT_NE(figure.find("<line x1=\"203.2\""), std::string::npos) << figure;
  const auto with_losses = [&](double low, double high) {
    for (Json& entry : report["entries"])
      entry["runs"] = Json::array({Json{
          {"seed", 1}, {"valid_loss", entry["name"] == "a" ? low : high}, {"bits_per_byte", 3}}});
    return ticks_of(study_figure(report, "report.json"));
  };
  EXPECT_EQ(with_losses(0, 0.004), (Ticks{"0", "0.001", "0.002", "0.003", "0.004"}));
  EXPECT_EQ(with_losses(2.18, 2.41), (Ticks{"2.2", "2.25", "2.3", "2.35", "2.4"}));
  // accuracies: from 0 to 1
  report["entries"][0]["runs"] = json_of(R"([{"seed": 1, "valid_loss": 1, "accuracy": 0.5}])");
  report["entries"][1]["runs"] = report["entries"][0]["runs"];
  EXPECT_EQ(ticks_of(study_figure(report, "report.json")),
            (Ticks{"0", "0.2", "0.4", "0.6", "0.8", "1"}));
}

/// Every study of examples/studies can run, and its page has the result of that study.
TEST(StudyPage, EveryStudyHasAPageAndAResult) {
  const fs::path source = TESSERA_SOURCE_DIR, studies = source / "examples" / "studies";
  spec::JsonLimits comments;
  comments.comments = true;
  int64_t count = 0;
  for (const auto& file : fs::directory_iterator(studies)) {
    if (file.path().extension() != ".json") continue;
    const Json json = spec::read_json_file(file.path(), comments);
    if (!json.contains("entries")) continue;  // a recipe
    const std::string name = file.path().stem().string();
    SCOPED_TRACE(name);
    ++count;
    const Study study = read_study(json, studies);
    const Json report =
        spec::read_json_file(source / "docs" / "studies" / "results" / (name + ".json"));
    EXPECT_NE(read_text_file(source / "docs" / "studies" / (name + ".md"))
                  .find("<!-- table: results " + name + " -->"),
              std::string::npos);
    EXPECT_TRUE(fs::exists(source / "docs" / "studies" / (name + ".svg")));
    EXPECT_EQ(report.at("command").get<std::string>(),
              fmt::format("tessera compare examples/studies/{0}.json --out out/{0}", name));
    EXPECT_EQ(report.at("seeds"), Json(study.seeds));
    EXPECT_EQ(report.value("claims", Json::array()).size(), study.claims.size());
    ASSERT_EQ(report.at("entries").size(), study.entries.size());
    for (size_t i = 0; i < study.entries.size(); ++i) {
      const Json& entry = report["entries"][i];
      EXPECT_EQ(entry.at("name"), study.entries[i].name);
      EXPECT_EQ(entry.at("parameters"), study.entries[i].parameters) << study.entries[i].name;
      EXPECT_EQ(entry.at("steps"), study.entries[i].steps) << study.entries[i].name;
    }
  }
  EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace tessera::train
