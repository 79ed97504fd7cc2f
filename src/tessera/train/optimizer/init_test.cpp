// muP: what a few steps at one learning rate do to the logits does not grow with the width. The
// coordinate check of Yang et al. 2022, arXiv:2203.03466, app. D.1.
#include "tessera/train/optimizer/optimizer.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::init_test {
namespace {

using spec::Json;

model::ModelSpec of_width(int64_t d, const Json& init) {
  Json json = json_of(R"({
    "tessera": 1, "arch": "decoder", "vocab": 32, "head": "linear", "layers": [{"repeat": 2}],
    "mixer": {"type": "attention", "head_dim": 16, "position": "rope"},
    "ffn": {"type": "glu", "d_hidden": "2"}})");
  json["d_model"] = d;
  json["mixer"]["n_heads"] = d / 16;
  json["init"] = init;
  return model::read_model_spec(json);
}

/// Root mean square of what three steps of Adam change in the logits of a batch.
double moved(int64_t d, const Json& init) {
  const model::ModelSpec spec = of_width(d, init);
  const model::Model model(spec, model::Weights::initial(spec, 1));
  OptimizerRecipe recipe;
  recipe.lr = 0.01;
  recipe.weight_decay = 0;
  const ParameterSet parameters(model, recipe);
  const auto optimizer = make_optimizer(recipe, parameters);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 64; ++i) ids.push_back(i * i % 31);
  const nn::Batch batch = nn::Batch::of({ids});
  const Tensor targets = batch.ids_N.roll(-1);
  Tensor first, last;
  for (int step = 0; step <= 3; ++step) {
    const at::AutoGradMode gradients(true);
    const Tensor logits = model.logits(model.hidden(batch));
    if (step == 0) first = logits.detach();
    last = logits.detach();
    parameters.clear_gradients();
    at::cross_entropy_loss(logits, targets).backward();
    optimizer->update(1, 1);
  }
  return (last - first).square().mean().sqrt().item<double>();
}

TEST(Initialisation, UnderMupAStepMovesLogitsAlikeAtEveryWidth) {
  const Json mup = json_of(R"({"type": "mup", "base_d_model": 32, "std": 0.1})"),
             plain = json_of(R"({"type": "residual_scaled", "std": 0.1})");
  const double narrow = moved(32, mup), wide = moved(512, mup);
  EXPECT_GT(wide / narrow, 0.5);
  EXPECT_LT(wide / narrow, 2);
  // at the base width it is the plain rule but for the logits' own; 16 times wider it is not
  EXPECT_GT(moved(512, plain) / moved(32, plain), 4);
}

TEST(Initialisation, MupDividesRatesAndKeepsWhatDecayTakes) {
  const model::ModelSpec spec = of_width(128, json_of(R"({"type": "mup", "base_d_model": 32})"));
  const model::Model model(spec, model::Weights::initial(spec, 1));
  OptimizerRecipe recipe;
  recipe.weight_decay = 0.1;
  recipe.groups = {{.match = {"layers.1.*"}, .lr_factor = 0.5}};
  const ParameterSet parameters(model, recipe);
  for (const auto& entry : parameters.trained()) {
    const ParameterGroup& group = parameters.group_of(entry);
    const bool matrix = entry.decl.kind == spec::ParamKind::matrix;
    const double own = entry.decl.name.starts_with("layers.1.") ? 0.5 : 1;
    EXPECT_EQ(group.lr_factor, own * (matrix ? 0.25 : 1)) << entry.decl.name;
    if (entry.decl.decays())
      EXPECT_DOUBLE_EQ(group.lr_factor * group.weight_decay, own * 0.1) << entry.decl.name;
    else
      EXPECT_EQ(group.weight_decay, 0) << entry.decl.name;
  }
}

}  // namespace
}  // namespace tessera::train::init_test
