// When experts come and go, which ones, and what is refused; no model is run.
#include "tessera/train/experts/expert_changes.h"

#include "tessera/train/train_testing.h"

namespace tessera::train::expert_changes_test {
namespace {

using Experts = std::vector<int64_t>;

Json with_mixture(const TemporaryFolder& folder, const char* router) {
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));
  json["spec"]["ffn"] = {{"type", "moe"},
                         {"n_experts", 4},
                         {"router", json_of(router)},
                         {"expert", {{"type", "glu"}, {"d_hidden", 8}}}};
  return json;
}

constexpr const char* kTopK = R"({"type": "top_k", "k": 2})";
constexpr const char* kFirst = "layers.0.ffn";
constexpr const char* kSecond = "layers.1.ffn";

struct Setting {
  TemporaryFolder folder;
  Recipe recipe = read_recipe(with_mixture(folder, kTopK), "", {});
  ExpertCounts counts{
      .updates = 3,
      .by_router = {{"layers.0.ffn.router", {10, 0, 6, 4}}, {"layers.1.ffn.router", {5, 5, 5, 5}}}};

  std::optional<convert::ExpertChange> due(const char* experts, int64_t step) {
    const auto how = spec::read_struct<ExpertsRecipe>(json_of(experts), {});
    return due_change(how, recipe.spec, step, 7, counts);
  }
};

TEST(ExpertChanges, WhatIsHardlyUsedGoes) {
  Setting s;
  // half an even share is 2.5
  const auto change = s.due(R"({"remove": {"below": 0.5, "after": 3}})", 9);
  ASSERT_TRUE(change);
  ASSERT_EQ(change->from.size(), 1U);
  EXPECT_EQ(change->from.at(kFirst), (Experts{0, 2, 3}));
  EXPECT_EQ(change->k, 0);
  EXPECT_EQ(s.counts.updates, 0);
  EXPECT_TRUE(s.counts.by_router.empty());
  const Json told = describe(*change, s.recipe.spec);
  EXPECT_EQ(told, json_of(R"({"layers.0.ffn": {"from": 4, "to": 3, "removed": [1]}})"));
  EXPECT_EQ(text_of_changes(told), "layers.0.ffn 4 -> 3 experts, without 1");
}

TEST(ExpertChanges, AJudgementThatRemovesNoneCountsAnew) {
  Setting s;
  EXPECT_FALSE(s.due(R"({"remove": {"below": 0.5, "after": 3, "keep": 4}})", 9));
  EXPECT_EQ(s.counts.updates, 0);
  Setting early;
  EXPECT_FALSE(early.due(R"({"remove": {"below": 0.5, "after": 4}})", 9));
  EXPECT_EQ(early.counts.updates, 3);
}

TEST(ExpertChanges, ATokenKeepsAsManyAsItUses) {
  Setting s;
  s.counts.by_router["layers.0.ffn.router"] = {0, 0, 20, 0};
  const auto change = s.due(R"({"remove": {"below": 1, "after": 1}})", 9);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->from.at(kFirst), (Experts{0, 2}));  // k = 2: the first of equals
  // of a layer that nobody counted nothing is known
  Setting none;
  none.counts.by_router.clear();
  EXPECT_FALSE(none.due(R"({"remove": {"below": 1, "after": 1}})", 9));
}

TEST(ExpertChanges, TheMostUsedAreCopied) {
  Setting s;
  const char* grow = R"({"grow": [{"at": 5, "to": 6}, {"at": 8, "to": 10, "k": 3, "noise": 0.5}]})";
  EXPECT_FALSE(s.due(grow, 4));
  EXPECT_EQ(s.counts.updates, 3);
  const auto six = s.due(grow, 5);
  ASSERT_TRUE(six);
  EXPECT_EQ(six->from.at(kFirst), (Experts{0, 1, 2, 3, 0, 2}));
  EXPECT_EQ(six->from.at(kSecond), (Experts{0, 1, 2, 3, 0, 1}));
  EXPECT_EQ(six->noise, 0.01);
  EXPECT_EQ(s.counts.updates, 0);
  Setting later;
  const auto ten = later.due(grow, 8);
  ASSERT_TRUE(ten);
  EXPECT_EQ(ten->from.at(kFirst), (Experts{0, 1, 2, 3, 0, 2, 3, 1, 0, 2}));
  EXPECT_EQ(ten->k, 3);
  EXPECT_EQ(ten->noise, 0.5);
  EXPECT_NE(ten->seed, six->seed);
  EXPECT_EQ(text_of_changes(describe(*ten, later.recipe.spec)),
            "layers.0.ffn 4 -> 10 experts, copies of 0, 2, 3, 1, 0, 2, 3 a token; "
            "layers.1.ffn 4 -> 10 experts, copies of 0, 1, 2, 3, 0, 1, 3 a token");
}

TEST(ExpertChanges, SomeGoAndOthersComeAtOneStep) {
  Setting s;
  const auto change =
      s.due(R"({"grow": [{"at": 9, "to": 5}], "remove": {"below": 0.5, "after": 3}})", 9);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->from.at(kFirst), (Experts{0, 2, 3, 0, 2}));
  EXPECT_EQ(describe(*change, s.recipe.spec)[kFirst],
            json_of(R"({"from": 4, "to": 5, "removed": [1], "copied": [0, 2]})"));
  // a mixture that has as many already stays
  Setting full;
  EXPECT_FALSE(full.due(R"({"grow": [{"at": 9, "to": 3}]})", 9));
}

TEST(ExpertChanges, CountsAreReadBack) {
  const Setting s;
  const ExpertCounts back = ExpertCounts::of(s.counts.to_json(), "file");
  EXPECT_EQ(back.updates, s.counts.updates);
  EXPECT_EQ(back.by_router, s.counts.by_router);
  for (const char* text :
       {"null", "[]", R"({"updates": 1})", R"({"updates": -1, "by_router": {}})",
        R"({"updates": 1, "by_router": {"r": [-1]}})", R"({"updates": 1, "by_router": {"r": 3}})"})
    EXPECT_NE(test::error_of(ErrorKind::file, [&] { ExpertCounts::of(json_of(text), "file"); })
                  .find("file"),
              std::string::npos)
        << text;
}

TEST(ExpertChanges, RecipesAreRefusedInOneLine) {
  const TemporaryFolder folder;
  const auto refused = [&](const char* router, const char* experts, const char* text) {
    Json json = with_mixture(folder, router);
    json["experts"] = json_of(experts);
    const std::string error = test::error_of(ErrorKind::spec, [&] { read_recipe(json, "", {}); });
    EXPECT_NE(error.find(text), std::string::npos) << experts << ": " << error;
  };
  refused(R"({"type": "hash"})", R"({"remove": {"below": 0.1, "after": 3}})",
          "[experts] layers.0.ffn: router \"hash\"");
  refused(R"({"type": "top_k", "n_groups": 2})", R"({"remove": {"below": 0.1, "after": 3}})",
          "experts in 2 groups");
  refused(kTopK, R"({"grow": [{"at": 12, "to": 6}]})",
          "[experts.grow[0].at] found 12; expected 1 to 11");
  refused(kTopK, R"({"grow": [{"at": 4, "to": 6}, {"at": 4, "to": 8}]})", "[experts.grow[1].at]");
  refused(kTopK, R"({"grow": [{"at": 4, "to": 6, "k": 7}]})", "found 7 of 6 experts");
  refused(kTopK, R"({"grow": [{"at": 4, "to": 100000}]})", "expected at most 65536");
  refused(kTopK, R"({"grow": [{"to": 6}]})", "at");
  refused(kTopK, R"({"remove": {"below": 2, "after": 3}})", "found 2; expected at most 1");
  refused(R"({"type": "top_p"})", R"({"grow": [{"at": 4, "to": 6, "k": 3}]})",
          "no number of choices");
  Json dense = tiny_recipe(folder.write("text.txt", counting_text(3000)));
  dense["experts"] = json_of(R"({"remove": {"below": 0.1, "after": 3}})");
  EXPECT_NE(test::error_of(ErrorKind::spec, [&] { read_recipe(dense, "", {}); })
                .find("no mixture of experts"),
            std::string::npos);
  // what is written out is read alike
  Json json = with_mixture(folder, kTopK);
  json["experts"] =
      json_of(R"({"grow": [{"at": 4, "to": 6}], "remove": {"below": 0.1, "after": 5}})");
  const Json resolved = resolve(read_recipe(json, "", {}));
  EXPECT_EQ(resolve(read_recipe(resolved, "", {})), resolved);
  EXPECT_EQ(resolved["experts"]["remove"]["keep"], 1);
}

}  // namespace
}  // namespace tessera::train::expert_changes_test
