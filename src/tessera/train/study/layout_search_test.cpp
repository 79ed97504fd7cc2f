#include "tessera/train/study/layout_search.h"

#include <algorithm>
#include <cmath>

#include "tessera/train/train_testing.h"

namespace tessera::train {
namespace {

class LayoutSearchFiles : public ::testing::Test {
 protected:
  LayoutSearchFiles() {
    folder_.write("text.txt", counting_text(4000));
    folder_.write("base.json", tiny_recipe("text.txt").dump());
  }
  LayoutSearch read(const std::string& search, const std::string& more = "") const {
    return read_search({json_of(R"({"base": "base.json", "equal": {"tolerance": 0.05,
        "multiple_of": 1}, )" + more +
                                R"("search": )" + search + "}"),
                        folder_.path()});
  }
  void refused(ErrorKind kind, const std::string& search, std::string_view part) const {
    expect_error(kind, part, [&] { read(search); });
  }
  static std::vector<std::string> names(const LayoutSearch& search) {
    std::vector<std::string> out;
    for (const StudyEntry& entry : search.study.entries) out.push_back(entry.name);
    return out;
  }
  const TemporaryFolder folder_;
};

const char* const kTwoMixers = R"("mixers": {"a": "attention", "l": "linear_attention"})";

TEST_F(LayoutSearchFiles, CandidatesAreCombinationsOfEqualSize) {
  const LayoutSearch search = read(std::string("{") + kTwoMixers + "}");
  EXPECT_EQ(names(search), (std::vector<std::string>{"a-a", "l-a", "a-l", "l-l"}));
  EXPECT_EQ(search.baselines, 0u);
  const Json& mixed = search.study.entries[1].recipe["spec"]["layers"];
  ASSERT_EQ(mixed.size(), 2u);
  // a type takes the heads of the base's mixer, and its own type is that mixer
  EXPECT_EQ(mixed[0]["mixer"], json_of(R"({"type": "linear_attention", "n_heads": 2})"));
  EXPECT_EQ(mixed[1]["mixer"]["position"]["type"], "rope");
  for (const StudyEntry& entry : search.study.entries)
    EXPECT_NEAR(entry.amount / search.study.amount, 1, 0.05) << entry.name;
}

TEST_F(LayoutSearchFiles, FurtherChoicesPeriodsAndBaselines) {
  const LayoutSearch search = read(std::string("{") + kTwoMixers + R"(, "period": 1,
           "over": {"spec.residual": ["pre_norm", "sandwich"], "spec.ffn.act": ["gelu"]}})",
                                   R"("entries": [{"name": "base"}], "reference": "base", )");
  EXPECT_EQ(names(search),
            (std::vector<std::string>{"base", "a,residual=pre_norm", "l,residual=pre_norm",
                                      "a,residual=sandwich", "l,residual=sandwich"}));
  EXPECT_EQ(search.baselines, 1u);
  EXPECT_EQ(search.candidates(), 4u);
  const Json& last = search.study.entries[4].recipe["spec"];
  EXPECT_EQ(last["residual"], "sandwich");
  EXPECT_EQ(last["ffn"]["act"], "gelu");
  EXPECT_EQ(last["layers"][0]["mixer"], last["layers"][1]["mixer"]);
  // a file without entries is a study too
  const std::string file =
      folder_.write("search.json", R"({"base": "base.json", "equal": {"by": "none"},
          "search": {"mixers": {"a": "attention", "l": "linear_attention"}}})");
  EXPECT_EQ(read_search(study_file({file}, Json::object())).candidates(), 4u);
  // without mixers: norms and the like alone
  EXPECT_EQ(names(read(R"({"over": {"spec.norm": ["rms_norm", {"type": "layer_norm"}]}})")),
            (std::vector<std::string>{"norm=rms_norm", "norm=layer_norm"}));
}

TEST_F(LayoutSearchFiles, OfTooManyCombinationsSomeAreDrawn) {
  Json deep = tiny_recipe("text.txt");
  deep["spec"]["layers"][0]["repeat"] = 3;
  deep["spec"]["cycles"] = 2;
  folder_.write("deep.json", deep.dump());
  const StudyFile file{json_of(R"({"base": "deep.json", "equal": {"by": "none"},
      "search": {"mixers": {"a": "attention", "l": "linear_attention"}, "candidates": 5}})"),
                       folder_.path()};
  const LayoutSearch search = read_search(file);
  const std::vector<std::string> drawn = names(search);
  ASSERT_EQ(drawn.size(), 5u);
  EXPECT_EQ(drawn[0], "a-a-a-a-a-a");
  EXPECT_EQ(search.study.entries[0].recipe["spec"]["cycles"], 1);
  EXPECT_EQ(names(read_search(file)), drawn);
}

TEST_F(LayoutSearchFiles, LayoutsAreRankedByTheirBestRate) {
  const LayoutSearch search = read(std::string("{") + kTwoMixers + R"(, "finalists": 2})",
                                   R"("learning_rates": [0.01, 0.02], )");
  const std::vector<LayoutTrial> trials = trials_of(search);
  ASSERT_EQ(trials.size(), 8u);
  EXPECT_EQ(trials[3].entry, 1u);
  EXPECT_EQ(trials[3].rate, 0.02);
  Halving halving(trials.size());
  // layout 2 at the second rate is the best, then layout 3 at the first; all others are worse
  while (const auto trial = halving.next()) {
    const LayoutTrial& one = trials[trial->candidate];
    halving.add(one.entry == 2 && one.rate == 0.02   ? 1
                : one.entry == 3 && one.rate == 0.01 ? 2
                                                     : 3);
  }
  const std::vector<RankedLayout> ranking = ranked_layouts(trials, halving);
  ASSERT_EQ(ranking.size(), 4u);
  EXPECT_EQ(ranking[0].entry, 2u);
  EXPECT_EQ(ranking[0].rate, 0.02);
  EXPECT_EQ(ranking[0].fraction, 1);
  EXPECT_EQ(ranking[1].entry, 3u);
  const Study last = final_study(search, ranking);
  ASSERT_EQ(last.entries.size(), 2u);
  EXPECT_EQ(last.entries[0].name, "a-l");
  EXPECT_EQ(last.reference, "a-l");
  const ReportPart part = search_part(search, ranking);
  EXPECT_EQ(part.json["layouts"][0]["name"], "a-l");
  EXPECT_EQ(part.json["layouts"].size(), 4u);
  EXPECT_EQ(part.tables[0][1], (std::vector<std::string>{"a-l", "0.02", "1/1", "1.0000"}));
}

TEST_F(LayoutSearchFiles, BadSearchesGiveOneLine) {
  using enum ErrorKind;
  refused(usage, "{}", "[search] nothing to choose from");
  refused(spec, R"({"mixer": {}})", "unknown key \"mixer\" (did you mean \"mixers\"?)");
  refused(spec, R"({"mixers": {"a": "attention"}})", "[search.mixers] expected an object of two");
  refused(spec, R"({"mixers": {"a": "attention", "b": "atention"}})",
          "[search.mixers.b] no mixer is named \"atention\" (did you mean \"attention\"?)");
  refused(usage, std::string("{") + kTwoMixers + R"(, "period": 3})",
          "[search.period] 3 does not divide the 2 layers");
  refused(spec, R"({"over": {"spec.norm": "rms_norm"}})", "expected a list of values of");
  Json long_form = tiny_recipe("text.txt");
  long_form["spec"]["layers"] = json_of(R"([{"branches": [{"mixer": "attention"}]}])");
  folder_.write("base.json", long_form.dump());
  refused(usage, std::string("{") + kTwoMixers + "}", "a layer of several branches");
}

}  // namespace
}  // namespace tessera::train
