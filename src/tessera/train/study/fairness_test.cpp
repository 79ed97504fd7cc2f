// Planted unfairness, each of which is found, and a fair study, in which nothing is.
#include "tessera/train/study/fairness.h"

#include "tessera/train/train_testing.h"

namespace tessera::train {
namespace {

class Fairness : public ::testing::Test {
 protected:
  Fairness() {
    folder_.write("text.txt", counting_text(6000));
    folder_.write("other.txt", counting_text(3000) + std::string(3000, 'x'));
    folder_.write("base.json", tiny_recipe("text.txt").dump());
  }
  Study study(const std::string& second, const std::string& more = "") const {
    return read_study(json_of(R"({"base": "base.json", "seeds": [1, 2, 3], )" + more +
                              R"("entries": [{"name": "a"}, {"name": "b", )" + second + "}]}"),
                      folder_.path());
  }
  /// As run_study() finds them, before any run.
  std::vector<EntryFacts> facts_of(const Study& study) const {
    std::vector<EntryFacts> out;
    for (const StudyEntry& entry : study.entries) {
      EntryFacts facts;
      facts.rate = entry.rate;
      for (const int64_t seed : study.seeds) {
        const Recipe recipe = recipe_of(entry, {entry.steps, entry.rate, seed, true});
        const auto source = open_source(recipe, folder_ / "cache");
        facts.orders[seed] = order_of(*source, recipe.train, study.common_steps());
        facts.validation = validation_of(*source);
      }
      out.push_back(facts);
    }
    return out;
  }
  /// Names of what is unfair.
  static std::vector<std::string> unfair(const Study& study, const std::vector<EntryFacts>& facts) {
    std::vector<std::string> out;
    for (const Finding& finding : findings_of(study, facts))
      if (finding.unfair) out.push_back(finding.check);
    return out;
  }
  std::vector<std::string> unfair(const Study& study) const {
    return unfair(study, facts_of(study));
  }
  using Names = std::vector<std::string>;
  const TemporaryFolder folder_;
};

TEST_F(Fairness, EqualEntriesHaveNoFinding) {
  const Study fair = study(R"("spec": {"ffn": {"act": "gelu"}})");
  const auto facts = facts_of(fair);
  EXPECT_TRUE(findings_of(fair, facts).empty());
  // the order turns on the seed alone
  EXPECT_EQ(facts[0].orders, facts[1].orders);
  EXPECT_NE(facts[0].orders.at(1), facts[0].orders.at(2));
}

TEST_F(Fairness, FindsAnotherDataOrder) {
  Json changed = json_of(R"({"extends": "base.json"})");
  changed["data"]["train"] = {"other.txt"};
  folder_.write("other.json", changed.dump());
  EXPECT_EQ(unfair(study(R"("recipe": "other.json")")), (Names{"order", "validation"}));
  // the same data, dealt by another seed
  const Study fair = study(R"("spec": {"ffn": {"act": "gelu"}})");
  auto facts = facts_of(fair);
  facts[1].orders[2] = facts[1].orders[3];
  EXPECT_EQ(unfair(fair, facts), Names{"order"});
}

TEST_F(Fairness, FindsOtherBatches) {
  // the same samples, in updates of other sizes, or cut at other places
  EXPECT_EQ(unfair(study(R"("set": ["train.length=8", "train.batch=8"])")),
            (Names{"order", "validation"}));
  EXPECT_EQ(unfair(study(R"("set": ["train.batch=8"])", R"("budget": {"steps": 12}, )")),
            (Names{"order", "budget"}));
  // of one update of 8 samples the two passes are the same
  EXPECT_EQ(unfair(study(R"("set": ["train.batch=2", "train.accumulate=2"])")), Names());
}

TEST_F(Fairness, FindsUnequalSizes) {
  const Study unequal =
      study(R"("set": ["spec.ffn.d_hidden=40"])", R"("equal": {"by": "parameters", "key": ""}, )");
  EXPECT_EQ(unfair(unequal), Names{"equality"});
  EXPECT_EQ(unfair(study(R"("set": ["spec.ffn.d_hidden=40"])",
                         R"("equal": {"key": "", "tolerance": 0.2}, )")),
            Names());
  // a budget of FLOPs gives the smaller more steps, of which the first are the same
  const Study flops = study(R"("set": ["spec.ffn.d_hidden=64"])",
                            R"("equal": {"by": "none"}, "budget": {"flops": 1e8}, )");
  EXPECT_GT(flops.entries[0].steps, flops.entries[1].steps);
  EXPECT_EQ(unfair(flops), Names());
  // where nothing is to be equal it is a note
  const Study free = study(R"("set": ["spec.ffn.d_hidden=40"])", R"("equal": {"by": "none"}, )");
  EXPECT_EQ(unfair(free), Names());
  EXPECT_EQ(findings_of(free, facts_of(free)).at(0).check, "equality");
}

TEST_F(Fairness, FindsARateAtTheEndOfThoseTried) {
  const Study tuned = study(R"("spec": {"ffn": {"act": "gelu"}})");
  auto facts = facts_of(tuned);
  facts[1].rate_at_end = true;
  EXPECT_EQ(unfair(tuned, facts), Names{"rate"});
  const Study shared =
      study(R"("spec": {"ffn": {"act": "gelu"}})", R"("learning_rates": "shared", )");
  const auto found = findings_of(shared, facts_of(shared));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].check, "rate");
  EXPECT_FALSE(found[0].unfair);
  EXPECT_TRUE(found[0].text.starts_with("one learning rate for all models")) << found[0].text;
  const Study given = study(R"("set": ["optimizer.lr=0.002"])", R"("learning_rates": "shared", )");
  const auto rates = findings_of(given, facts_of(given));
  ASSERT_EQ(rates.size(), 1u);
  EXPECT_TRUE(rates[0].text.starts_with("the learning rates are those of the recipes"))
      << rates[0].text;
}

TEST_F(Fairness, FindsFailedRunsFewSeedsAndOtherTraining) {
  const Study fair = study(R"("set": ["optimizer.weight_decay=0.3", "train.clip_norm=2"])");
  auto facts = facts_of(fair);
  facts[1].failed[2] = "the loss is nan";
  const auto found = findings_of(fair, facts);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].check, "failed");
  EXPECT_TRUE(found[0].unfair);
  EXPECT_EQ(found[1].text,
            "b: its training differs from that of a in optimizer.weight_decay, train.clip_norm");
  Study one = fair;
  one.seeds = {1};
  EXPECT_EQ(findings_of(one, facts).back().check, "seeds");
}

}  // namespace
}  // namespace tessera::train
