// What predictors of tokens further ahead learn: which tokens, by which gradients, and that they
// do.
#include <gmock/gmock.h>

#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/objective/next_token/mtp_targets.h"
#include "tessera/train/objective/objective.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::mtp_targets_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Documents of 4, 1 and 3 tokens; the second predicts nothing.
PackedBatch documents() {
  PackedBatch packed;
  packed.ids = {3, 1, 4, 1, 5, 9, 2, 6};
  packed.targets = {1, 4, 1, 7, -1, 2, 6, -1};
  packed.pieces = {{0, 0, 4}, {0, 4, 1}, {1, 5, 3}};
  packed.n_targets = 6;
  return packed;
}

TEST(MtpBatch, ReadsAndPredictsTokensFurtherOn) {
  const PackedBatch packed = documents();
  const nn::Batch batch = batch_of(packed);
  const MtpBatch one = ahead_of(packed, batch, 0, true), three = ahead_of(packed, batch, 2, false);
  EXPECT_THAT(one.tokens, ElementsAre(0, 1, 2, 5, 6));
  EXPECT_TRUE(at::equal(one.batch.ids_N, at::tensor({1, 4, 1, 2, 6}, at::kLong)));
  EXPECT_THAT(one.targets, ElementsAre(4, 1, 7, 6, -1));
  EXPECT_TRUE(at::equal(one.batch.positions_N, at::tensor({0, 1, 2, 0, 1}, at::kLong)));
  EXPECT_EQ(one.n_targets, 4);
  EXPECT_THAT(three.tokens, ElementsAre(0));
  EXPECT_THAT(three.targets, ElementsAre(7));
  EXPECT_TRUE(at::equal(three.batch.ids_N, at::tensor({3}, at::kLong)));
  for (int64_t k = 0; k < 5; ++k)
    EXPECT_EQ(targets_ahead(packed, k), ahead_of(packed, batch, k, true).n_targets) << k;
}

Recipe recipe_of(const char* predictors, const TemporaryFolder& folder) {
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));
  json["spec"]["predictors"] = json_of(predictors);
  json["train"]["predictors"] = 0.6;
  return read_recipe(json, "", {});
}

constexpr const char* kModules = R"([{"repeat": 2, "layers": [{
    "mixer": {"type": "attention", "n_heads": 2, "position": "rope"}}]}])";
constexpr const char* kHeads = R"([{"repeat": 2, "reads": "trunk", "token": false, "layers": [{
    "mixer": {"type": "attention", "n_heads": 2, "position": "rope"}}]}])";

/// The definition: logits of all, one sum of losses, autograd.
Tensor whole_loss(const model::Model& model, const PackedBatch& packed, bool modules) {
  const auto nll = [&](const Tensor& hidden_ND, const std::vector<int64_t>& targets) {
    return at::nll_loss(at::log_softmax(model.logits(hidden_ND), -1),
                        at::tensor(targets, at::kLong), {}, at::Reduction::Mean, -1);
  };
  const nn::Batch batch = batch_of(packed);
  model::ForwardOptions options;
  options.training = true;
  const Tensor trunk = model.hidden(batch, options);
  Tensor loss = nll(trunk, packed.targets);
  // documents of 4 and 3: tokens 0, 1, 2, 5, 6 of the first predictor, 0, 1, 5 of the second
  const auto pick = [](const Tensor& x, std::vector<int64_t> rows) {
    return x.index_select(0, at::tensor(rows, at::kLong));
  };
  const auto of = [](std::vector<std::vector<int64_t>> rows) { return nn::Batch::of(rows); };
  const Tensor first =
      model.predict(0, pick(trunk, {0, 1, 2, 5, 6}), of({{1, 4, 1}, {2, 6}}), options);
  const Tensor second = model.predict(1, modules ? pick(first, {0, 1, 3}) : pick(trunk, {0, 1, 5}),
                                      of({{4, 1}, {6}}), options);
  return loss + 0.6 / 2 * (nll(first, {4, 1, 7, 6, -1}) + nll(second, {1, 7, -1}));
}

TEST(MtpBatch, GradientsAreThoseOfTheSumOfLosses) {
  for (const bool modules : {true, false}) {
    const TemporaryFolder folder;
    const Recipe recipe = recipe_of(modules ? kModules : kHeads, folder);
    const auto objective = token_objective(recipe.data_plan(), *recipe.objective, nullptr);
    const PackedBatch packed = documents();
    const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 3)),
        twin(recipe.spec, model::Weights::initial(recipe.spec, 3));
    model::ForwardOptions forward;
    forward.training = true;
    const Denominators whole = objective->denominators(packed);
    EXPECT_EQ(whole.of("predictor_1"), 4);
    EXPECT_EQ(whole.of("predictor_2"), 2);
    const LossSums sums =
        objective->forward_backward(model, {packed, batch_of(packed), forward, whole});
    const Tensor expected = whole_loss(twin, packed, modules);
    expected.backward();
    EXPECT_NEAR(
        sums.at("loss") / 6 + 0.3 * (sums.at("predictor_1") / 4 + sums.at("predictor_2") / 2),
        expected.item<double>(), 1e-5);
    for (size_t i = 0; i < model.weights().all().size(); ++i) {
      const auto& [decl, weight] = model.weights().all()[i];
      const Tensor own = weight->dense_tensor().grad(),
                   other = twin.weights().all()[i].second->dense_tensor().grad();
      ASSERT_EQ(own.defined(), other.defined()) << decl.name;
      if (own.defined()) {
        EXPECT_TRUE(at::allclose(own, other, 1e-4, 1e-6)) << decl.name;
      }
    }
  }
}

TEST(MtpBatch, PredictorsLearnAndAreLogged) {
  for (const char* kind : {kModules, kHeads}) {
    const TemporaryFolder folder;
    Recipe recipe = recipe_of(kind, folder);
    recipe.train.steps = 40;
    std::map<std::string, double> first, last;
    TrainOptions options;
    options.on_step = [&](const LogLine& line, int64_t) {
      if (first.empty()) first = line.losses;
      last = line.losses;
    };
    train(recipe, folder / "run", options);
    for (const char* name : {"predictor_1", "predictor_2"}) {
      ASSERT_TRUE(first.contains(name) && last.contains(name)) << name;
      EXPECT_LT(last.at(name), 0.8 * first.at(name)) << name;
    }
    EXPECT_THAT(read_text_file(folder / "run" / "log.jsonl"), HasSubstr("predictor_2"));
  }
}

TEST(MtpBatch, RecipesThatDoNotFitAreRefused) {
  const TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));
  const auto error = [&](const std::vector<std::string>& overrides) {
    return test::error_of(ErrorKind::spec, [&] { read_recipe(json, "", overrides); });
  };
  EXPECT_THAT(error({"train.predictors=-1"}), HasSubstr("[train.predictors] found -1"));
  EXPECT_THAT(error({"train.recompute.every=0"}), HasSubstr("[train.recompute.every] found 0"));
  EXPECT_THAT(error({"train.recompute.of=all"}), HasSubstr("none, layers, mixers, ffns"));
  const std::vector<std::string> carried = {"train.windows=carried", "train.carry_limit=64"};
  auto with = [&](const std::string& more) {
    std::vector<std::string> all = carried;
    all.push_back(more);
    return error(all);
  };
  EXPECT_THAT(with("train.recompute.of=layers"), HasSubstr("[train.recompute] \"carried\""));
  json["spec"]["predictors"] = json_of(kModules);
  EXPECT_THAT(with("train.seed=1"), HasSubstr("[train.predictors] 2 of them"));
  EXPECT_EQ(with("train.predictors=0"), "");
}

TEST(ExitLosses, GradientsAreThoseOfTheWeightedSum) {
  const TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));
  json["spec"]["layers"][0]["repeat"] = 3;
  json["train"]["early_exit"] = {{"scale", 0.5}, {"curriculum", "all"}};
  const Recipe recipe = read_recipe(json, "", {});
  const auto objective = token_objective(recipe.data_plan(), *recipe.objective, nullptr);
  const PackedBatch packed = documents();
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 3)),
      twin(recipe.spec, model::Weights::initial(recipe.spec, 3));
  model::ForwardOptions forward;
  forward.training = true;
  const Denominators whole = objective->denominators(packed);
  const LossSums sums =
      objective->forward_backward(model, {packed, batch_of(packed), forward, whole});

  // e = 0, 0.5, 2 + 0.5
  Tensor expected = at::zeros({});
  for (const int64_t layers : {2, 3}) {
    forward.layers = layers;
    const Tensor logits = twin.logits(twin.hidden(batch_of(packed), forward));
    const Tensor nll =
        at::nll_loss(at::log_softmax(logits, -1), targets_of(packed), {}, at::Reduction::Mean, -1);
    EXPECT_NEAR(sums.at(layers == 2 ? "exit_2" : "loss") / 6, nll.item<double>(), 1e-5);
    expected = expected + (layers == 2 ? 0.5 : 2.5) / 3 * nll;
  }
  EXPECT_FALSE(sums.contains("exit_1"));
  expected.backward();
  for (size_t i = 0; i < model.weights().all().size(); ++i) {
    const auto& [decl, weight] = model.weights().all()[i];
    EXPECT_TRUE(at::allclose(weight->dense_tensor().grad(),
                             twin.weights().all()[i].second->dense_tensor().grad(), 1e-4, 1e-6))
        << decl.name;
  }
}

TEST(ExitLosses, AreLoggedAndRefusedWhereNoLogitsAre) {
  const TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));
  json["train"]["early_exit"] = {{"scale", 0.5}, {"curriculum", "all"}};
  json["spec"]["layers"][0]["repeat"] = 3;
  std::map<std::string, double> last;
  TrainOptions options;
  options.on_step = [&](const LogLine& line, int64_t) { last = line.losses; };
  train(read_recipe(json, "", {}), folder / "run", options);
  EXPECT_TRUE(last.contains("exit_2"));
  json["spec"]["residual"] = "hyper_connections";
  EXPECT_THAT(test::error_of(ErrorKind::spec, [&] { read_recipe(json, "", {}); }),
              HasSubstr("[train.early_exit] after layer 1"));
}

TEST(Recompute, GivesTheSameRun) {
  const TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));
  const auto losses = [&](const std::string& of) {
    std::vector<double> out;
    TrainOptions options;
    options.on_step = [&](const LogLine& line, int64_t) { out.push_back(line.loss); };
    train(read_recipe(json, "", {"train.recompute.of=" + of}), folder / of, options);
    return out;
  };
  const std::vector<double> plain = losses("none");
  EXPECT_EQ(losses("layers"), plain);
  EXPECT_EQ(losses("ffns"), plain);
}

}  // namespace
}  // namespace tessera::train::mtp_targets_test
