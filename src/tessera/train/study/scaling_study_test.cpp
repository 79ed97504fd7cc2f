#include "tessera/train/study/scaling_study.h"

#include <cmath>

#include "tessera/train/train_testing.h"

namespace tessera::train {
namespace {

class ScalingStudies : public ::testing::Test {
 protected:
  ScalingStudies() {
    folder_.write("text.txt", counting_text(4000));
    folder_.write("base.json", tiny_recipe("text.txt").dump());
  }
  ScalingStudy read(const std::string& more) const {
    return read_scaling(
        {json_of(R"({"base": "base.json", "learning_rates": "shared",)" + more + "}"),
         folder_.path()});
  }
  void refused(ErrorKind kind, const std::string& more, std::string_view part) const {
    expect_error(kind, part, [&] { read(more); });
  }
  const TemporaryFolder folder_;
};

const char* const kSizes = R"("scaling": {"sizes": [["spec.d_model=16"], ["spec.d_model=24"],
    ["spec.d_model=32"]]}, )";
const char* const kScaledPair = R"("entries": [{"name": "two"},
    {"name": "one", "set": ["spec.layers[0].mixer.n_kv_heads=1"]}],
    "equal": {"multiple_of": 1})";

TEST_F(ScalingStudies, EntriesAreEqualAtEverySize) {
  const ScalingStudy scaling = read(std::string(kSizes) + kScaledPair);
  ASSERT_EQ(scaling.sizes.size(), 3u);
  for (size_t size = 0; size < 3; ++size) {
    const Study& study = scaling.sizes[size];
    ASSERT_EQ(study.entries.size(), 2u);
    EXPECT_EQ(study.entries[0].recipe["spec"]["d_model"], 16 + 8 * size);
    EXPECT_NEAR(static_cast<double>(study.entries[1].body_parameters) /
                    static_cast<double>(study.entries[0].body_parameters),
                1, 0.01);
    EXPECT_GT(study.entries[1].solved, 32);
  }
  EXPECT_EQ(scaling.how.budgets, (std::vector<double>{.25, .5, 1}));
  EXPECT_EQ(scaling.sizes[0].entries[0].steps_of(.25), 3);  // of 12
  // the next size: as much larger as the last was
  const auto [n, d] = next_size(scaling, 0);
  const auto last = static_cast<double>(scaling.sizes[2].entries[0].body_parameters),
             before = static_cast<double>(scaling.sizes[1].entries[0].body_parameters);
  EXPECT_DOUBLE_EQ(n / last, last / before);
  EXPECT_EQ(d, 12 * 64);
  const ScalingStudy given = read(R"("scaling": {"sizes": [["spec.d_model=16"],
      ["spec.d_model=24"], ["spec.d_model=32"]], "parameters": 1e6, "tokens": 2e6,
      "budgets": [1, 0.125, 0.5]}, )" +
                                  std::string(kScaledPair));
  EXPECT_EQ(next_size(given, 1), std::pair(1e6, 2e6));
  EXPECT_EQ(given.how.budgets, (std::vector<double>{.125, .5, 1}));
}

TEST_F(ScalingStudies, BadStudiesGiveOneLine) {
  using enum ErrorKind;
  const std::string one = R"("entries": [{"name": "a"}])";
  refused(spec, R"("scaling": {}, )" + one, "[scaling]");
  refused(spec, R"("scaling": {"sizes": [["spec.d_model=16"]]}, )" + one,
          "[scaling.sizes] found 1; expected three or more");
  refused(usage,
          R"("scaling": {"sizes": [["spec.d_model=16"], ["spec.d_model=32"],
          ["spec.d_model=24"]]}, )" +
              one,
          "expected sizes that grow");
  refused(spec, R"("scaling": {"sizes": [[], [], []], "budgets": [0.5, 1]}, )" + one,
          "[scaling.budgets] found 2 parts, the largest 1; expected three or more");
  refused(spec, R"("scaling": {"sizes": [[], [], []], "budgets": [0.5, 1, 2]}, )" + one,
          "[scaling.budgets] found 2;");
  refused(spec, R"("scaling": {"sizes": [[], [], []], "budgets": [0.5, 0.5, 1]}, )" + one,
          "a part twice");
  refused(spec, std::string(kSizes) + R"("equal": {"value": 10000}, )" + one, "[equal.value]");
  refused(usage, std::string(kSizes) + R"("budget": {"steps": 2}, )" + one,
          "entry \"a\": 2 steps have fewer than three different parts");
}

TEST_F(ScalingStudies, TheReportHasTheFitAndThePrediction) {
  const ScalingStudy scaling = read(std::string(kSizes) + kScaledPair);
  // runs of a planted law for the first entry, and too few for the second
  ScalingResult result;
  result.points.resize(2);
  const auto law = [](double n, double d) {
    return 1.2 + 30 * std::pow(n, -.4) + 20 * std::pow(d, -.3);
  };
  for (size_t size = 0; size < 3; ++size) {
    const StudyEntry& entry = scaling.sizes[size].entries[0];
    for (const double budget : scaling.how.budgets) {
      const auto n = static_cast<double>(entry.body_parameters),
                 d = static_cast<double>(entry.steps_of(budget) * entry.tokens_per_step);
      result.points[0].push_back({{n, d, law(n, d)}, size, budget, 1});
    }
  }
  result.points[1].push_back(result.points[0][0]);
  const ReportPart part = scaling_part(scaling, result);
  const Json& first = part.json["entries"][0];
  const auto [n, d] = next_size(scaling, 0);
  EXPECT_NEAR(first["prediction"]["valid_loss"].get<double>(), law(n, d), 1e-3);
  EXPECT_LE(first["prediction"]["interval"][0].get<double>(), law(n, d) + 1e-3);
  EXPECT_GE(first["prediction"]["interval"][1].get<double>(), law(n, d) - 1e-3);
  EXPECT_EQ(first["runs"].size(), 9u);
  EXPECT_NEAR(first["runs"][4]["fitted"].get<double>(),
              first["runs"][4]["valid_loss"].get<double>(), 1e-3);
  EXPECT_FALSE(part.json["entries"][1].contains("fit"));
  ASSERT_EQ(part.tables.size(), 2u);
  EXPECT_EQ(part.tables[0][2][1], "too few runs");
  EXPECT_EQ(part.tables[1].size(), 1u + 2 * 3 * 3);
  EXPECT_EQ(part.tables[1].back()[3], "failed");
  EXPECT_NE(part.plot.find("valid loss by parameters"), std::string::npos);
}

}  // namespace
}  // namespace tessera::train
