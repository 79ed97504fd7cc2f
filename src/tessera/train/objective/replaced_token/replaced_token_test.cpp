// Training by tokens that another model has put into a text.
#include "tessera/train/objective/replaced_token/replaced_token.h"

#include <set>

#include "tessera/format/safetensors.h"
#include "tessera/ops/ops_testing.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/loop/checkpoint.h"
#include "tessera/train/loop/init_weights.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/objective/loss.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/objective/replaced_token/replaced_objective.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::replaced_token_test {
namespace {

namespace fs = std::filesystem;
using ops::gen;

TEST(ReplacedToken, GoldenOfAText) {
  Tensor logits = 2 * gen({3, 5}, 0.8, 0.3);
  const Tensor drawn = drawn_classes(logits, (1 + gen({3, 5}, 1.9, 0.7)) / 2);
  const std::vector<int64_t> ids(drawn.const_data_ptr<int64_t>(),
                                 drawn.const_data_ptr<int64_t>() + 3);
  EXPECT_EQ(ids, (std::vector<int64_t>{1, 2, 0}));
  const TokenLosses of_generator =
      cross_entropy_(logits, at::tensor(std::vector<int64_t>{1, 4, 2}, at::kLong), {});
  EXPECT_NEAR(of_generator.nll / 3, 1.50795728, 1e-7);

  // the text 7 1 9 4 8 2 6 with three of its tokens hidden
  PackedBatch packed;
  packed.ids = {7, 99, 9, 99, 8, 99, 6};
  packed.targets = {-1, 1, -1, 4, -1, 2, -1};
  const Replaced replaced = replaced_by(packed, ids);
  EXPECT_EQ(replaced.packed.ids, (std::vector<int64_t>{7, 1, 9, 2, 8, 0, 6}));
  ops::expect_near(replaced.is_other_N, ops::tensor({0, 0, 0, 1, 0, 1, 0}), 0);
  const double found =
      nats_of_found(2 * gen({7}, 0.6, -0.2), replaced.is_other_N).mean().item<double>();
  EXPECT_NEAR(found, 0.90460821, 1e-7);
  EXPECT_NEAR(of_generator.nll / 3 + 50 * found, 46.73836777, 1e-6);
}

struct Setting {
  TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("a.txt", counting_text(4000)));

  Setting() {
    json["spec"]["arch"] = "encoder";
    json["spec"]["vocab"] = 257;
    json["spec"]["d_model"] = 32;
    json["spec"].erase("head");
    json["spec"]["heads"] = {"token_score"};
    json["spec"]["layers"][0]["mixer"]["n_heads"] = 4;
    json["objective"] = {{"type", "replaced_token"}, {"mask_id", 256}, {"rate", 0.25}};
  }
  Recipe recipe(const std::vector<std::string>& changes = {}) const {
    return read_recipe(json, "", changes);
  }
  fs::path run(const std::string& name) const { return folder / name; }
};

TEST(ReplacedToken, TheGeneratorIsAQuarterAsWideUnlessItIsSaid) {
  const Setting s;
  const model::ModelSpec own = generator_of(*s.recipe().objective);
  EXPECT_EQ(own.d_model, 8);
  EXPECT_EQ(own.layers.size(), 2u);
  EXPECT_EQ(own.head.type(), "masked_lm");
  for (const spec::ParamDecl& decl : model::parameters(own)) {
    if (decl.name == "embed.token.weight") {
      EXPECT_EQ(decl.shape, (std::vector<int64_t>{257, 32}));
    }
    if (decl.name == "layers.0.ffn.up.weight") {
      EXPECT_EQ(decl.shape, (std::vector<int64_t>{8, 8}));
    }
  }
  // what was resolved is read again as it is
  const Recipe again = read_recipe(resolve(s.recipe()), "");
  EXPECT_EQ(model::resolve(generator_of(*again.objective)), model::resolve(own));

  const auto refused = [&](const std::string& change, const char* what) {
    SCOPED_TRACE(change);
    expect_error(ErrorKind::spec, what, [&] { s.recipe({change}); });
  };
  refused("objective.generator=\"a.json\"",
          "[objective.generator] found a string; expected a spec");
  expect_error(ErrorKind::spec,
               "[objective.generator] missing, and the spec at a quarter of its width is no model "
               "([d_model] "
               "30 is no multiple of 4)",
               [&] {
                 s.recipe({"spec.d_model=30", "spec.layers[0].mixer.head_dim=8"});
               });
  refused("spec.heads=[\"masked_lm\"]",
          "[spec.head] found \"masked_lm\"; objective \"replaced_token\" needs \"token_score\"");
  refused("objective.rate=0", "[objective.rate]");
  refused("objective.shar=\"none\"", "shar");
  refused("train.z_loss=0.1", "[train.z_loss] given with objective \"replaced_token\"");
  Json other = model::resolve(own);
  other["vocab"] = 300;
  refused("objective.generator=" + other.dump(), "[objective.generator.vocab] found 300; the spec");
}

/// All gradients by name, the generator's behind "generator.".
std::map<std::string, Tensor> gradients(const model::Model& model, const Companion& beside) {
  std::map<std::string, Tensor> out;
  const auto take = [&](const model::Model& of, const std::string& before) {
    for (const auto& [decl, weight] : of.weights().all()) {
      const Tensor gradient = weight->dense_tensor().grad();
      out[before + decl.name] = gradient.defined() ? gradient.clone() : Tensor();
      Tensor(weight->dense_tensor()).mutable_grad() = Tensor();
    }
  };
  take(model, "");
  if (beside.model != nullptr) take(*beside.model, beside.name + ".");
  return out;
}

TEST(ReplacedToken, WithoutSharingTheGradientsAreThoseOfTwoModels) {
  const Setting s;
  const Recipe recipe = s.recipe({"objective.share=\"none\"", "objective.generator_weight=2"});
  const auto objective = open_objective(recipe, s.folder / "cache");
  const model::Model model(recipe.spec, start_weights(recipe.model_plan()).weights);
  const Companion beside = objective->join(model).companion;
  ASSERT_NE(beside.model, nullptr);
  EXPECT_EQ(beside.name, "generator");
  std::vector<int64_t> begun;
  const PackedBatch packed = objective->source().train(0, 4, begun);
  const Denominators whole = objective->denominators(packed);
  const LossSums sums = objective->forward_backward(model, {packed, batch_of(packed), {}, whole});
  const auto both = gradients(model, beside);

  // the generator by itself
  const double scale = 2 / whole.of("generator");
  const TokenLosses alone = loss_and_backward(*beside.model, beside.model->hidden(batch_of(packed)),
                                              targets_of(packed), {.scale = scale});
  EXPECT_EQ(alone.nll, sums.at("generator"));
  for (const auto& [name, gradient] : gradients(*beside.model, {})) {
    const Tensor& got = both.at("generator." + name);
    ASSERT_EQ(got.defined(), gradient.defined()) << name;
    if (got.defined()) {
      EXPECT_TRUE(got.equal(gradient)) << name;
    }
  }
  // a quarter of the tokens were asked for, and the discriminator, which knows nothing, halves
  EXPECT_EQ(whole.of("generator"), 16);
  EXPECT_EQ(whole.of("loss"), 64);
  EXPECT_NEAR(sums.at("loss") / 64, std::log(2.0), 0.2);
  EXPECT_GT(both.at("head.dense.weight").norm().item<double>(), 0);
  EXPECT_GT(both.at("embed.token.weight").norm().item<double>(), 0);
}

TEST(ReplacedToken, SharedTablesGetTheGradientsOfBoth) {
  const Setting s;
  const Recipe recipe = s.recipe(), apart = s.recipe({"objective.share=\"none\""});
  const auto objective = open_objective(recipe, s.folder / "cache"),
             other = open_objective(apart, s.folder / "cache");
  const model::Model model(recipe.spec, start_weights(recipe.model_plan()).weights);
  const AuxiliaryParameters both = objective->join(model), apart_beside = other->join(model);
  const Companion beside = both.companion, alone = apart_beside.companion;
  const model::WeightPtr table = model.weights().find("embed.token.weight");
  EXPECT_EQ(beside.model->weights().find("embed.token.weight"), table);
  EXPECT_NE(alone.model->weights().find("embed.token.weight"), table);
  // and one set of parameters has it once
  const ParameterSet together(model, recipe.optimizer, {}, both),
      two(model, recipe.optimizer, {}, apart_beside);
  EXPECT_EQ(together.trained().size() + 1, two.trained().size());
  EXPECT_EQ(two.trained().back().decl.name.substr(0, 10), "generator.");
}

TEST(ReplacedToken, DisentangledTablesDifferByWhatTheDiscriminatorLearns) {
  const Setting s;
  const Recipe recipe = s.recipe({"objective.share=\"disentangled\""}),
               apart = s.recipe({"objective.share=\"none\""});
  const auto objective = open_objective(recipe, s.folder / "cache"),
             other = open_objective(apart, s.folder / "cache");
  const model::Model model(recipe.spec, start_weights(recipe.model_plan()).weights),
      alone(apart.spec, start_weights(apart.model_plan()).weights);
  const AuxiliaryParameters beside = objective->join(model), two = other->join(alone);
  ASSERT_EQ(beside.parameters.size(), 1u);
  const ParameterBeside& difference = beside.parameters.front();
  EXPECT_EQ(difference.decl.name, "difference.embed.token.weight");
  EXPECT_EQ(difference.tensor.abs().sum().item<double>(), 0);
  const Tensor of_generator =
      beside.companion.model->weights().find("embed.token.weight")->dense_tensor();
  const Tensor own = model.weights().find("embed.token.weight")->dense_tensor();
  EXPECT_TRUE(of_generator.equal(own));
  {
    // the two models with tables of their own that hold the same
    const at::NoGradGuard values;
    Tensor(two.companion.model->weights().find("embed.token.weight")->dense_tensor()).copy_(own);
  }
  const ParameterSet set(model, recipe.optimizer, {}, beside);
  std::set<std::string> trained;
  for (const ParameterSet::Entry& entry : set.trained()) trained.insert(entry.decl.name);
  EXPECT_TRUE(trained.contains("difference.embed.token.weight"));
  EXPECT_TRUE(trained.contains("generator.embed.token.weight"));
  EXPECT_FALSE(trained.contains("embed.token.weight"));
  const ParameterSet set_of_two(alone, apart.optimizer, {}, two);

  std::vector<int64_t> begun;
  const PackedBatch packed = objective->source().train(0, 4, begun);
  const Denominators whole = objective->denominators(packed);
  const LossSums sums = objective->forward_backward(model, {packed, batch_of(packed), {}, whole}),
                 of_two = other->forward_backward(alone, {packed, batch_of(packed), {}, whole});
  EXPECT_EQ(sums.at("loss"), of_two.at("loss"));
  EXPECT_TRUE(of_generator.grad().equal(
      two.companion.model->weights().find("embed.token.weight")->dense_tensor().grad()));
  EXPECT_TRUE(difference.tensor.grad().equal(
      alone.weights().find("embed.token.weight")->dense_tensor().grad()));
  EXPECT_FALSE(own.grad().defined());
  // two batches add up, in fp16 multiplied by a power of 2
  const Tensor once = difference.tensor.grad().clone();
  Denominators scaled = whole;
  scaled.loss_scale = 1024;
  difference.tensor.mutable_grad() = Tensor();
  objective->forward_backward(model, {packed, batch_of(packed), {}, scaled});
  ops::expect_near(difference.tensor.grad() / 1024, once, 1e-7);
  difference.tensor.mutable_grad() = once.clone();
  objective->forward_backward(model, {packed, batch_of(packed), {}, whole});
  ops::expect_near(difference.tensor.grad(), 2 * once, 1e-7);
}

TEST(ReplacedToken, DisentangledRunsGoOnBitForBit) {
  Setting s;
  s.json["objective"]["share"] = "disentangled";
  s.json["optimizer"]["average"] = {{"decay", 0.9}};
  s.json["train"]["steps"] = 20;
  s.json["checkpoint"]["every"] = 8;
  train(s.recipe(), s.run("whole"), {});
  CancelToken cancel;
  const auto stop = [&](const LogLine& line, int64_t) {
    if (line.step == 11) cancel.request(15);
  };
  expect_error(ErrorKind::cancelled, "",
               [&] { train(s.recipe(), s.run("cut"), {.cancel = &cancel, .on_step = stop}); });
  train(s.recipe(), s.run("cut"), {.resume = true});
  const fs::path a = checkpoint_folder(s.run("whole"), 20), b = checkpoint_folder(s.run("cut"), 20);
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "objective.safetensors",
                           "generator/model.safetensors"})
    EXPECT_TRUE(read_text_file(a / file) == read_text_file(b / file)) << file;
  // the model of a checkpoint has the table as it is used
  const auto read = [](const fs::path& file, const char* name) {
    const format::TensorFile all = format::open_safetensors(file);
    const format::TensorView& view = all.at(name);
    return at::from_blob(const_cast<std::byte*>(view.data.data()), view.shape, at::kFloat).clone();
  };
  const Tensor difference = read(a / "objective.safetensors", "difference.embed.token.weight");
  EXPECT_GT(difference.abs().max().item<double>(), 1e-3);
  EXPECT_TRUE(
      read(a / "model.safetensors", "embed.token.weight")
          .equal(read(a / "generator/model.safetensors", "embed.token.weight") + difference));
}

TEST(ReplacedToken, DrawsAreAFunctionOfTheSample) {
  const Setting s;
  const Recipe recipe = s.recipe();
  const auto objective = open_objective(recipe, s.folder / "cache");
  const model::Model model(recipe.spec, start_weights(recipe.model_plan()).weights);
  objective->join(model);
  const EvaluateOptions two{.batch = 2}, three{.batch = 3};
  const Evaluation a = objective->evaluate(model, two), b = objective->evaluate(model, three);
  EXPECT_NEAR(a.loss, b.loss, 1e-6);
  EXPECT_EQ(a.scores.at("recall"), b.scores.at("recall"));
  std::vector<int64_t> begun;
  const auto sum_of = [&](int64_t first, int64_t count) {
    const PackedBatch packed = objective->source().train(first, count, begun);
    return objective
        ->forward_backward(model, {packed, batch_of(packed), {}, objective->denominators(packed)})
        .at("loss");
  };
  EXPECT_NEAR(sum_of(0, 4), sum_of(0, 1) + sum_of(1, 2) + sum_of(3, 1), 1e-4);
}

TEST(ReplacedToken, LearnsAndGoesOnBitForBitWithItsGenerator) {
  Setting s;
  s.json["spec"]["residual"] = {{"type", "pre_norm"}, {"dropout", 0.1}};
  s.json["train"]["steps"] = 60;
  s.json["train"]["accumulate"] = 2;
  s.json["checkpoint"]["every"] = 25;
  std::vector<LogLine> lines;
  const TrainResult whole =
      train(s.recipe(), s.run("whole"),
            {.on_step = [&](const LogLine& line, int64_t) { lines.push_back(line); }});
  ASSERT_TRUE(whole.last && whole.last->valid_loss);
  EXPECT_LT(lines.back().losses.at("generator"), lines.front().losses.at("generator") - 1);
  EXPECT_TRUE(whole.last->scores.contains("precision"));
  EXPECT_TRUE(whole.last->scores.contains("recall"));
  EXPECT_EQ(lines.front().tokens, 128);

  CancelToken cancel;
  const auto stop = [&](const LogLine& line, int64_t) {
    if (line.step == 31) cancel.request(15);
  };
  expect_error(ErrorKind::cancelled, "",
               [&] { train(s.recipe(), s.run("cut"), {.cancel = &cancel, .on_step = stop}); });
  train(s.recipe(), s.run("cut"), {.resume = true});
  const fs::path a = checkpoint_folder(s.run("whole"), 60), b = checkpoint_folder(s.run("cut"), 60);
  for (const char* file :
       {"model.safetensors", "optimizer.safetensors", "generator/model.safetensors"})
    EXPECT_TRUE(read_text_file(a / file) == read_text_file(b / file)) << file;
  // the generator is a model of its own
  const model::Model generator = load_model(a / "generator");
  EXPECT_EQ(generator.spec().d_model, 8);
  EXPECT_TRUE(generator.weights()
                  .find("embed.token.weight")
                  ->tensor()
                  .equal(load_model(a).weights().find("embed.token.weight")->tensor()));
  // and its damage is noticed
  std::ofstream(b / "generator/model.safetensors", std::ios::app) << "x";
  expect_error(ErrorKind::file, "generator/model.safetensors", [&] { verify_checkpoint(b); });
}

}  // namespace
}  // namespace tessera::train::replaced_token_test
