#include "tessera/train/study/study.h"

#include "tessera/train/train_testing.h"

namespace tessera::train {
namespace {

class StudyFiles : public ::testing::Test {
 protected:
  StudyFiles() {
    folder_.write("text.txt", counting_text(4000));
    folder_.write("base.json", tiny_recipe("text.txt").dump());
  }
  Study read(const std::string& text) const { return read_study(json_of(text), folder_.path()); }
  void refused(ErrorKind kind, const std::string& text, std::string_view part) const {
    expect_error(kind, part, [&] { read(text); });
  }
  const TemporaryFolder folder_;
};

TEST_F(StudyFiles, EntriesAreEqualInParametersByTheKey) {
  const Study study = read(R"({"base": "base.json", "equal": {"multiple_of": 1},
    "entries": [{"name": "glu"},
                {"name": "mlp", "spec": {"ffn": {"type": "mlp", "act": "gelu", "d_hidden": 1}}},
                {"name": "mqa", "set": ["spec.layers[0].mixer.n_kv_heads=1"]}]})");
  ASSERT_EQ(study.entries.size(), 3u);
  EXPECT_FALSE(study.entries[0].solved);
  const int64_t amount = study.entries[0].body_parameters;
  EXPECT_EQ(study.amount, static_cast<double>(amount));
  for (const StudyEntry& entry : study.entries)
    EXPECT_NEAR(static_cast<double>(entry.body_parameters) / static_cast<double>(amount), 1, 0.01)
        << entry.name;
  // two key and value matrices of 8 x 16 less in each layer; a unit of width is 3 * 16
  EXPECT_EQ(study.entries[2].solved, 32 + 2 * 8 * 16 / 48);
  EXPECT_EQ(study.entries[1].recipe["spec"]["ffn"]["d_hidden"], *study.entries[1].solved);
  EXPECT_EQ(study.reference, "glu");
  EXPECT_EQ(study.seeds, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_TRUE(study.tunes());
  EXPECT_EQ(study.rates_of(study.entries[0]).size(), 6u);
}

TEST_F(StudyFiles, EqualFlopsAndStateBytes) {
  const char* const entries = R"("entries": [{"name": "two"},
    {"name": "one", "set": ["spec.layers[0].mixer.n_kv_heads=1"]}]})";
  const Study flops = read(R"({"base": "base.json", "equal": {"by": "flops", "multiple_of": 1}, )" +
                           std::string(entries));
  EXPECT_GT(flops.entries[1].solved, 32);
  EXPECT_NEAR(flops.entries[1].flops / flops.entries[0].flops, 1, 0.01);
  const Study state = read(R"({"base": "base.json", "equal": {"by": "state_bytes",
    "key": "mixer.n_kv_heads", "multiple_of": 1, "context": 100}, "entries": [{"name": "a",
    "set": ["spec.layers[0].mixer.n_kv_heads=1"]}, {"name": "b"}]})");
  // keys and values of 8 numbers, 4 bytes, 2 layers
  EXPECT_EQ(state.entries[1].state_bytes, 2 * 8 * 4 * 2 * 100);
  EXPECT_EQ(state.entries[1].solved, 1);
}

TEST_F(StudyFiles, GeneratorsNameTheirValues) {
  const Study study = read(R"({"base": "base.json", "equal": {"by": "none"},
    "entries": [{"over": "spec.ffn.act", "values": ["silu", "gelu"]},
                {"name": "wide", "over": "spec.ffn.d_hidden", "values": [48, 64]}],
    "reference": "wide,d_hidden=48", "seeds": 2, "learning_rates": [0.01, 0.02]})");
  std::vector<std::string> names;
  for (const StudyEntry& entry : study.entries) names.push_back(entry.name);
  EXPECT_EQ(names, (std::vector<std::string>{"act=silu", "act=gelu", "wide,d_hidden=48",
                                             "wide,d_hidden=64"}));
  EXPECT_EQ(study.entries[3].recipe["spec"]["ffn"]["d_hidden"], 64);
  EXPECT_EQ(study.reference_index(), 2u);
  EXPECT_EQ(study.seeds, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(study.rates_of(study.entries[0]), (std::vector<double>{0.01, 0.02}));
}

TEST_F(StudyFiles, BudgetsAreWholeStepsWithTheWarmUpInProportion) {
  const auto steps = [&](const std::string& budget) {
    const Study study = read(R"({"base": "base.json", "equal": {"by": "none"}, "budget": )" +
                             budget + R"(, "entries": [{"name": "a"}, {"name": "b"}]})");
    return std::pair(study.entries[0].steps, study.entries[0].recipe);
  };
  EXPECT_EQ(steps("{}").first, 12);
  EXPECT_EQ(steps(R"({"tokens": 640})").first, 10);  // of 4 * 16 tokens
  EXPECT_EQ(steps(R"({"tokens": 703})").first, 10);
  EXPECT_EQ(steps(R"({"steps": 24})").second["schedule"]["warmup"], 4);
  EXPECT_EQ(steps(R"({"steps": 2})").second["schedule"]["warmup"], 1);
  const Study study = read(R"({"base": "base.json", "equal": {"by": "none"},
    "budget": {"flops": 1e8}, "entries": [{"name": "a"},
    {"name": "b", "set": ["spec.ffn.d_hidden=64"]}]})");
  for (const StudyEntry& entry : study.entries) {
    EXPECT_LE(entry.training_flops(), 1e8);
    EXPECT_GT(entry.training_flops() * (1 + 1. / static_cast<double>(entry.steps)), 1e8);
  }
  EXPECT_GT(study.entries[0].steps, study.entries[1].steps);
}

TEST_F(StudyFiles, RecipesOfRuns) {
  const Study study = read(R"({"base": "base.json", "equal": {"by": "none"},
    "budget": {"steps": 40}, "entries": [{"name": "a b"}, {"name": "b"}]})");
  const StudyEntry& entry = study.entries[0];
  const Recipe full = recipe_of(entry, {40, 0.5, 7, true}),
               part = recipe_of(entry, {5, 0.25, 0, false});
  EXPECT_EQ(full.train.steps, 40);
  EXPECT_EQ(full.train.seed, 7);
  EXPECT_EQ(full.train.eval_every, 4);
  EXPECT_EQ(full.optimizer.lr, 0.5);
  EXPECT_EQ(full.checkpoint.every, 4);
  EXPECT_EQ(part.train.steps, 5);
  EXPECT_EQ(part.train.eval_every, 0);
  EXPECT_EQ(warmup_of(part.schedule).warmup, 1);  // 2 of 12 in the base
  EXPECT_EQ(name_of(entry, {40, 0.5, 7, true}), "a_b/seed=7,lr=0.5,steps=40");
  EXPECT_EQ(name_of(entry, {5, 0.25, 0, false}), "a_b/search,lr=0.25,steps=5");
}

TEST_F(StudyFiles, ARecipeWithSpecsIsAStudy) {
  Json spec = tiny_recipe("text.txt")["spec"];
  spec["ffn"]["d_hidden"] = 48;
  const std::string wide = folder_.write("wide.json", spec.dump()),
                    other = folder_.write("other.json", R"({"extends": "base.json",
                      "spec": {"ffn": {"act": "gelu"}}})");
  const Study study =
      load_study({folder_ / "base.json", wide, other}, {{"budget", {{"steps", 3}}}, {"seeds", 2}});
  ASSERT_EQ(study.entries.size(), 3u);
  EXPECT_EQ(study.entries[1].name, "wide");
  EXPECT_EQ(study.entries[1].solved, 32);  // as the first
  EXPECT_EQ(study.entries[2].recipe["spec"]["ffn"]["act"], "gelu");
  EXPECT_EQ(study.entries[2].steps, 3);
  expect_error(ErrorKind::usage, "wide.json is a spec; expected a study, or a recipe before", [&] {
    load_study({wide, folder_ / "base.json"}, Json::object());
  });
  const std::string file = folder_.write("study.json", R"({"base": "base.json", // comment
    "entries": [{"name": "a"}, {"name": "b"}]})");
  EXPECT_EQ(load_study({file}, Json::object()).entries.size(), 2u);
  expect_error(ErrorKind::usage, "is a study; expected no other file", [&] {
    load_study({file, wide}, Json::object());
  });
}

TEST_F(StudyFiles, BadStudiesGiveOneLine) {
  using enum ErrorKind;
  const std::string two = R"("entries": [{"name": "a"}, {"name": "b"}]})";
  const std::string base = R"({"base": "base.json", )";
  refused(spec, R"({"base": "base.json", "entires": []})",
          "[study] unknown key \"entires\" (did you mean \"entries\"?)");
  refused(spec, base + R"("equal": {"bye": "none"}, )" + two, "[equal] unknown key \"bye\"");
  refused(spec, base + R"("equal": {"by": "size"}, )" + two, "[equal.by]");
  refused(spec, base + R"("entries": [{"name": "a", "st": []}, {"name": "b"}]})",
          "[entries[0]] unknown key \"st\"");
  refused(spec, base + R"("entries": [{"name": "a"}, {}]})", "[entries[1]] \"name\" is missing");
  refused(spec, base + R"("entries": [{"name": "a"}, {"over": "spec.ffn.act"}]})",
          "\"over\" and \"values\" belong together");
  refused(usage, base + R"("entries": [{"name": "a"}]})", "1 entry; expected two or more");
  refused(usage, base + R"("entries": [{"name": "a"}, {"name": "a"}]})",
          "two entries are named \"a\"");
  refused(spec, R"({"entries": [{"name": "a"}, {"name": "b"}]})", "\"base\" is missing");
  refused(usage, base + R"("budget": {"tokens": 63}, )" + two,
          "entry \"a\": [budget] 63 tokens are less than one step of 64");
  refused(spec, base + R"("budget": {"tokens": 63, "steps": 2}, )" + two, "several budgets");
  refused(spec, base + R"("seeds": [1, 1], )" + two, "[seeds] 1 twice");
  refused(spec, base + R"("seeds": 0, )" + two, "[seeds] found 0");
  refused(usage, base + R"("learning_rates": [0.1, 0.1], )" + two, "learning rate 0.1 twice");
  refused(spec, base + R"("learning_rates": "tuned", )" + two, "[learning_rates]");
  refused(spec, base + R"("reference": "c", )" + two, "no entry is named \"c\"");
  refused(usage, base + R"("entries": [{"name": "a"}, {"name": "b", "spec": {"d_model": 64}}]})",
          "entry \"b\": [solve] ");
  refused(
      usage,
      base + R"("equal": {"by": "state_bytes", "key": "ffn.d_hidden"}, "entries": [{"name": "a"},
            {"name": "b", "set": ["spec.layers[0].mixer.n_kv_heads=1"]}]})",
      "bytes of state does not depend on \"ffn.d_hidden\"");
  refused(usage, base + R"("entries": [{"name": "a"}, {"name": "b", "spec": {"vocab": 300}}]})",
          "entry \"b\": vocab 300, and the first has 256");
  refused(usage, base + R"("entries": [{"name": "a"}, {"name": "b", "spec": {"head": "linear"}}]})",
          "entry \"b\": its head is not tied, that of the first is tied");
  refused(usage,
          base + R"("entries": [{"name": "a"}, {"name": "b", "set": ["data.valid_fraction=0"]}]})",
          "entry \"b\": [data] no validation data");
  refused(spec,
          base + R"("entries": [{"name": "a"}, {"name": "b", "set": ["spec.ffn.act=sulu"]}]})",
          "entry \"b\": ");
}

TEST_F(StudyFiles, ClaimsNameEntriesAndLengths) {
  const std::string pair = R"("base": "base.json", "equal": {"by": "none"},
    "entries": [{"name": "rope"}, {"name": "none", "set": ["spec.layers[0].mixer.position=none"]}])";
  const Study study = read("{" + pair + R"(, "evaluate": {"lengths": [32]},
    "claims": [{"better": "rope", "than": "none", "paper": "arXiv:2104.09864"},
               {"better": "none", "than": "rope", "of": "accuracy", "length": 32}]})");
  ASSERT_EQ(study.claims.size(), 2u);
  EXPECT_EQ(study.claims[0].of, ClaimOf::loss);
  EXPECT_EQ(study.claims[1].length, 32);
  EXPECT_EQ(study.index_of("none"), 1u);
  const auto wrong = [&](const std::string& more, std::string_view part) {
    refused(ErrorKind::spec, "{" + pair + ", " + more + "}", part);
  };
  wrong(R"("claims": [{"better": "rop", "than": "none"}])", "did you mean \"rope\"");
  wrong(R"("claims": [{"better": "rope"}])", "\"than\" is missing");
  wrong(R"("claims": [{"better": "rope", "than": "none", "length": 64}])",
        "[claims[0]] length 64 is not evaluated; expected one of evaluate.lengths");
  wrong(R"("claims": {})", "[claims] found an object; expected a list of claims");
  wrong(R"("evaluate": {"lengths": [0]})", "[evaluate.lengths] found 0; expected tokens, from 1");
}

}  // namespace
}  // namespace tessera::train
