// Learning from another model: what reaches which parameters, and runs that are cut.
#include "tessera/train/objective/distillation/distillation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/mapped_file.h"
#include "tessera/ops/ops_testing.h"
#include "tessera/train/gguf_testing.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/loop/init_weights.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/objective/distillation/distillation_losses.h"
#include "tessera/train/objective/distillation/distillation_objective.h"
#include "tessera/train/objective/loss.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::distillation_test {
namespace {

using ops::expect_near;

/// A folder with a text and a teacher of three layers that has seen some of it.
class Distillation : public ::testing::Test {
 protected:
  Distillation() : text_(folder_.write("a.txt", counting_text(4000))) {}

  Json teacher_recipe() const {
    Json json = tiny_recipe(text_);
    json["spec"]["layers"][0]["repeat"] = 3;
    json["train"] = json_of(R"({"steps": 3, "batch": 4, "length": 16, "seed": 7})");
    json["data"].erase("valid_fraction");
    json.erase("checkpoint");
    return json;
  }
  std::string teacher(const Json& recipe) const {
    train(read_recipe(recipe, ""), folder_ / "teacher", {.resume = true});
    return (folder_ / "teacher").string();
  }
  std::string teacher() const { return teacher_recipe_made() ? path() : teacher(teacher_recipe()); }
  Json recipe(const Json& terms) const {
    Json json = tiny_recipe(text_);
    json["objective"] = {{"type", "distillation"}, {"teacher", teacher()}, {"terms", terms}};
    return json;
  }
  /// Two layers of another width, which attend otherwise.
  Json narrow(const Json& terms) const {
    Json json = recipe(terms);
    json["spec"]["d_model"] = 8;
    return json;
  }
  std::unique_ptr<Objective> open(const Json& json) const {
    return open_objective(read_recipe(json, ""), folder_ / "cache");
  }

  TemporaryFolder folder_;
  std::string text_;

 private:
  std::string path() const { return (folder_ / "teacher").string(); }
  bool teacher_recipe_made() const { return std::filesystem::exists(folder_ / "teacher"); }
};

/// Losses of one pass over one batch, each over its denominator, and the gradients it leaves.
LossSums losses_of(const Objective& objective,
                   const model::Model& model,
                   const PackedBatch& packed) {
  const Denominators whole = objective.denominators(packed);
  for (const auto& [decl, weight] : model.weights().all())
    Tensor(weight->dense_tensor()).mutable_grad() = Tensor();
  model::ForwardOptions forward;
  forward.training = true;
  LossSums out = objective.forward_backward(model, {packed, batch_of(packed), forward, whole});
  for (auto& [name, sum] : out) sum = sum / std::max(1.0, whole.of(name));
  return out;
}

PackedBatch some(const Objective& objective) {
  std::vector<int64_t> begun;
  return objective.source().train(0, 3, begun);
}

model::ForwardOptions watched_by(nn::Probe probe) {
  model::ForwardOptions options;
  options.probe = std::move(probe);
  return options;
}

double largest_gradient(const model::Model& model, const std::string& part = "") {
  double most = 0;
  for (const auto& [decl, weight] : model.weights().all())
    if (const Tensor& gradient = weight->dense_tensor().grad();
        gradient.defined() && decl.name.find(part) != std::string::npos)
      most = std::max(most, gradient.abs().max().item<double>());
  return most;
}

Json every_term() {
  return json_of(R"([
    {"of": "logits"}, {"of": "logits", "divergence": "reverse", "temperature": 2},
    {"of": "logits", "divergence": "jsd", "beta": 0.3, "top_k": 5},
    {"of": "hidden"}, {"of": "hidden", "distance": "cosine", "weight": 2},
    {"of": "attention"}, {"of": "values"},
    {"of": "mixer"}, {"of": "mixer", "match": "heads"}, {"of": "mixer", "match": "frobenius"}])");
}

TEST_F(Distillation, OfATeacherLikeItselfThereIsNothingToLearn) {
  Json json = recipe(every_term());
  json["objective"]["alpha"] = 1;
  json["spec"] = teacher_recipe()["spec"];
  json["init"] = {{"from", teacher()}};
  const Recipe read = read_recipe(json, "");
  const auto objective = open_objective(read, folder_ / "cache");
  const model::Model model(read.spec, start_weights(read.model_plan()).weights);
  const LossSums losses = losses_of(*objective, model, some(*objective));
  EXPECT_EQ(losses.size(), 11);
  for (const auto& [name, loss] : losses)
    if (name != "loss") {
      EXPECT_NEAR(loss, 0, 1e-6) << name;
    }
  EXPECT_LT(largest_gradient(model), 1e-5);
  EXPECT_GT(losses.at("loss"), 0);
}

TEST_F(Distillation, GradientsAreThoseOfTheSumOfTheTerms) {
  Json json = recipe(every_term());
  json["objective"]["alpha"] = 0.3;
  json["objective"]["layers"] = {{2, 0}, {0, 1}, {1, 1}};
  const Recipe read = read_recipe(json, "");
  const auto objective = open_objective(read, folder_ / "cache");
  const model::Model model(read.spec, model::Weights::initial(read.spec, 3, at::kDouble));
  const PackedBatch packed = some(*objective);
  const std::vector<double> weights = {1, 1, 1, 1, 2, 1, 1, 1, 1, 1};
  const auto total = [&] {
    const LossSums losses = losses_of(*objective, model, packed);
    const auto& terms = dynamic_cast<const DistillationConfig&>(*read.objective).keys().terms;
    const auto names = loss_names(terms);
    double sum = 0.7 * losses.at("loss");
    for (size_t i = 0; i < names.size(); ++i) sum += 0.3 * weights[i] * losses.at(names[i]);
    return sum;
  };
  total();
  std::map<std::string, Tensor> gradients;
  for (const auto& [decl, weight] : model.weights().all())
    if (weight->dense_tensor().grad().defined())
      gradients[decl.name] = weight->dense_tensor().grad().clone();
  for (const char* name : {"layers.0.mixer.q.weight", "layers.1.mixer.v.weight",
                           "layers.0.ffn.down.weight", "embed.token.weight"}) {
    const Tensor values = model.weights().find(name)->dense_tensor().detach().flatten();
    const int64_t at = 32 * 16 < values.numel() ? 53 * 16 + 3 : 5;  // a row that the text has
    constexpr double kStep = 1e-5;
    const double before = values[at].item<double>();
    values[at].fill_(before + kStep);
    const double above = total();
    values[at].fill_(before - kStep);
    const double below = total();
    values[at].fill_(before);
    EXPECT_NEAR(gradients.at(name).flatten()[at].item<double>(), (above - below) / (2 * kStep),
                1e-7)
        << name;
  }
}

TEST_F(Distillation, OfLogitsEqualsTheDefinitionWhateverTheChunks) {
  Json json = recipe(json_of(R"([{"of": "logits", "temperature": 2}])"));
  json["objective"]["alpha"] = 1;
  const auto objective = open(json);
  Recipe read = read_recipe(json, "");
  const model::Model model(read.spec, model::Weights::initial(read.spec, 3)),
      teacher(load_model(folder_ / "teacher/latest"));
  const PackedBatch packed = some(*objective);
  const double loss = losses_of(*objective, model, packed).at("logits");
  const Tensor rows =
      divergence(model.logits(model.hidden(batch_of(packed))),
                 teacher.logits(teacher.hidden(batch_of(packed))), {.temperature = 2});
  const Tensor asked = targets_of(packed) >= 0;
  EXPECT_NEAR(loss, rows.masked_select(asked).mean().item<double>(), 1e-5);
}

TEST_F(Distillation, RowsOfAHeadInSeveralChunksKnowTheirNumbers) {
  // 16 rows a chunk
  model::ModelSpec spec = model::read_model_spec(json_of(
      R"({"tessera": 1, "arch": "decoder", "vocab": 262144, "d_model": 2, "layers": [{"mixer": {"type": "attention", "n_heads": 1}}],
          "ffn": {"type": "mlp", "d_hidden": 4}, "head": {"type": "linear"}})"));
  const model::Model model(spec, model::Weights::initial(spec, 1));
  const Tensor hidden = ops::gen({40, 2}, 0.3, 0.1).to(at::kFloat).requires_grad_(true);
  for (const bool few : {false, true}) {
    Tensor targets = at::arange(40, at::kLong);
    if (few) targets.narrow(0, 0, 25).fill_(-1);
    std::vector<int64_t> seen;
    LossOptions options;
    options.scale = 0;
    options.added_gradient = [&](const Tensor& logits_NC, const Tensor& rows_N,
                                 const Tensor& targets_N) {
      EXPECT_TRUE(at::equal(logits_NC, model.logits(hidden.index_select(0, rows_N))));
      EXPECT_TRUE(at::equal(targets_N, targets.index_select(0, rows_N)));
      for (int64_t i = 0; i < rows_N.numel(); ++i) seen.push_back(rows_N[i].item<int64_t>());
      return at::ones_like(logits_NC);
    };
    const HeadLoss loss = head_loss(model, hidden, targets, options);
    std::vector<int64_t> all(few ? 15 : 40);
    std::iota(all.begin(), all.end(), few ? 25 : 0);
    EXPECT_EQ(seen, all);
    const Tensor sums = model.weights().find("head.weight")->dense_tensor().detach().sum(0);
    expect_near(loss.gradient[3], sums, 1e-3);
  }
}

TEST_F(Distillation, ATextAloneIsTheSameAmongOthers) {
  const auto objective = open(recipe(every_term()));
  const Recipe read = read_recipe(recipe(every_term()), "");
  const model::Model model(read.spec, model::Weights::initial(read.spec, 3, at::kDouble));
  LossSums apart;
  PackedBatch together;
  for (const int64_t n : {1, 7, 63}) {
    PackedBatch alone;
    for (int64_t i = 0; i < n; ++i) {
      alone.ids.push_back((i * 37 + n) % 256);
      alone.targets.push_back((i * 37 + n + 37) % 256);
    }
    alone.pieces = {{0, 0, n}};
    alone.n_targets = n;
    together.pieces.push_back({0, static_cast<int64_t>(std::ssize(together.ids)), n});
    together.ids.insert(together.ids.end(), alone.ids.begin(), alone.ids.end());
    together.targets.insert(together.targets.end(), alone.targets.begin(), alone.targets.end());
    together.n_targets += n;
    for (const auto& [name, sum] : objective->forward_backward(
             model, {alone, batch_of(alone), {}, objective->denominators(alone)}))
      apart[name] += sum;
  }
  const LossSums sums = objective->forward_backward(
      model, {together, batch_of(together), {}, objective->denominators(together)});
  for (const auto& [name, sum] : sums) EXPECT_NEAR(sum, apart.at(name), 1e-5 * (1 + sum)) << name;
}

TEST_F(Distillation, MixersAloneLearnFromTheTeachersInputs) {
  Json json = recipe(json_of(R"([{"of": "mixer"}])"));
  json["objective"]["alpha"] = 1;
  json["objective"]["layers"] = {{0, 0}, {2, 1}};
  json["spec"]["layers"][0]["mixer"] = {{"type", "mamba2"}, {"n_heads", 2}, {"d_state", 4}};
  const Recipe read = read_recipe(json, "");
  const auto objective = open_objective(read, folder_ / "cache");
  EXPECT_EQ(objective->main_loss(), "mixer");
  const model::Model model(read.spec, model::Weights::initial(read.spec, 3)),
      teacher(load_model(folder_ / "teacher/latest"));
  const PackedBatch packed = some(*objective);
  const LossSums losses = losses_of(*objective, model, packed);
  EXPECT_EQ(losses.size(), 1);
  EXPECT_GT(largest_gradient(model, ".mixer."), 0);
  for (const char* other : {"ffn", "embed", "_norm"})
    EXPECT_EQ(largest_gradient(model, other), 0) << other;

  // the same by hand, from what the teacher's mixers read and made
  std::map<std::string, Tensor> seen, made;
  teacher.hidden(batch_of(packed), watched_by({[&](const std::string& name, const Tensor& value) {
                   seen[name] = value.detach();
                 }}));
  model::ForwardOptions fed;
  fed.replace = [&](const std::string& name, const Tensor& x) {
    return name == "layers.0.mixer.in"   ? seen.at("layers.0.mixer.in")
           : name == "layers.1.mixer.in" ? seen.at("layers.2.mixer.in")
                                         : x;
  };
  fed.probe = [&](const std::string& name, const Tensor& value) { made[name] = value.detach(); };
  model.hidden(batch_of(packed), fed);
  const auto mse = [](const Tensor& a, const Tensor& b) {
    return (a - b).square().mean().item<double>();
  };
  EXPECT_NEAR(losses.at("mixer"),
              (mse(made.at("layers.0.mixer.out"), seen.at("layers.0.mixer.out")) +
               mse(made.at("layers.1.mixer.out"), seen.at("layers.2.mixer.out"))) /
                  2,
              1e-6);
}

TEST_F(Distillation, WhatMixersShowOfThemselves) {
  for (const char* mixer :
       {R"({"type": "attention", "n_heads": 4, "n_kv_heads": 2, "position": {"type": "rope"}})",
        R"({"type": "attention", "n_heads": 2, "position": {"type": "alibi"}, "softcap": 3})",
        R"({"type": "attention", "n_heads": 2, "pattern": {"type": "window", "width": 3}})",
        R"({"type": "attention", "n_heads": 2, "sinks": true})",
        R"({"type": "linear_attention", "n_heads": 2})",
        R"({"type": "linear_attention", "n_heads": 2, "feature": "identity"})"}) {
    Json json = tiny_recipe("a.txt")["spec"];
    json["layers"][0]["mixer"] = json_of(mixer);
    const model::ModelSpec spec = model::read_model_spec(json);
    const model::Model model(spec, model::Weights::initial(spec, 3, at::kDouble));
    std::map<std::string, std::vector<Tensor>> seen;
    const auto take = [&](const std::string& name, const Tensor& value) {
      seen[name].push_back(value.detach());
    };
    const nn::Batch batch = nn::Batch::of({{1, 2, 3, 4, 5, 6, 7}, {8, 9}});
    model.hidden(batch, watched_by(nn::Probe(take)));
    EXPECT_FALSE(seen.contains("layers.0.mixer.weights")) << "only to who names it";
    model.hidden(batch, watched_by({take, [](const std::string& name) {
                                      return name.starts_with("layers.1.mixer.") &&
                                             !name.ends_with(".in");
                                    }}));
    const std::vector<Tensor> weights = seen.at("layers.1.mixer.weights");
    ASSERT_EQ(weights.size(), 2) << mixer;
    const Tensor heads = seen.at("layers.1.mixer.heads").front();
    int64_t begin = 0;
    for (const Tensor& w_HTT : weights) {
      const int64_t t = w_HTT.size(1), h = w_HTT.size(0);
      Tensor v_HTD;
      if (seen.contains("layers.1.mixer.values")) {
        v_HTD = seen.at("layers.1.mixer.values").front().narrow(0, begin, t).transpose(0, 1);
        v_HTD = v_HTD.repeat_interleave(h / v_HTD.size(0), 0);
      } else {
        v_HTD =
            at::matmul(seen.at("layers.1.mixer.in").back().narrow(0, begin, t),
                       model.weights().find("layers.1.mixer.v.weight")->dense_tensor().detach().t())
                .unflatten(1, {h, -1})
                .transpose(0, 1);
      }
      expect_near(at::matmul(w_HTT, v_HTD).transpose(0, 1).flatten(1), heads.narrow(0, begin, t),
                  1e-10, mixer);
      begin += t;
    }
  }
}

TEST_F(Distillation, GoesOnWithTheSameBitsMapsIncluded) {
  Json json = narrow(json_of(R"([{"of": "logits"}, {"of": "hidden", "weight": 0.1}])"));
  json["train"]["accumulate"] = 2;
  const Recipe recipe = read_recipe(json, "");
  const TrainResult whole = train(recipe, folder_ / "whole", {});
  ASSERT_TRUE(whole.last && whole.last->valid_loss);
  EXPECT_GT(whole.last->losses.at("hidden"), 0);
  EXPECT_GT(whole.last->losses.at("valid_teacher"), 0);
  CancelToken cancel;
  const auto stop = [&](const LogLine& line, int64_t) {
    if (line.step == 7) cancel.request(15);
  };
  expect_error(ErrorKind::cancelled, "",
               [&] { train(recipe, folder_ / "cut", {.cancel = &cancel, .on_step = stop}); });
  const TrainResult resumed = train(recipe, folder_ / "cut", {.resume = true});
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "objective.safetensors"})
    EXPECT_TRUE(read_text_file(checkpoint_folder(folder_ / "whole", 12) / file) ==
                read_text_file(checkpoint_folder(folder_ / "cut", 12) / file))
        << file;
  EXPECT_EQ(*whole.last->valid_loss, *resumed.last->valid_loss);
  // the maps have moved, and the model is one without them
  EXPECT_NE(read_text_file(checkpoint_folder(folder_ / "whole", 12) / "objective.safetensors"),
            read_text_file(checkpoint_folder(folder_ / "whole", 10) / "objective.safetensors"));
  load_model(folder_ / "whole/latest");

  // another teacher is another run
  std::filesystem::remove_all(folder_ / "teacher");
  Json other = teacher_recipe();
  other["train"]["seed"] = 8;
  teacher(other);
  expect_error(ErrorKind::spec, "objective.teacher",
               [&] { train(read_recipe(json, ""), folder_ / "whole", {.resume = true}); });
}

TEST_F(Distillation, AnAdapterLearnsBesideMaps) {
  Json own = narrow(json_of(R"([{"of": "logits"}])"));
  own.erase("objective");
  own["train"]["steps"] = 3;
  train(read_recipe(own, ""), folder_ / "own", {});
  Json json = narrow(json_of(R"([{"of": "logits"}, {"of": "hidden"}])"));
  json.erase("spec");
  json["init"] = {{"from", (folder_ / "own").string()}};
  json["adapter"] = {{"rank", 2}};
  const Recipe recipe = read_recipe(json, "");
  train(recipe, folder_ / "whole", {});
  CancelToken cancel;
  const auto stop = [&](const LogLine& line, int64_t) {
    if (line.step == 6) cancel.request(15);
  };
  expect_error(ErrorKind::cancelled, "",
               [&] { train(recipe, folder_ / "cut", {.cancel = &cancel, .on_step = stop}); });
  train(recipe, folder_ / "cut", {.resume = true});
  for (const char* file : {"adapter.safetensors", "optimizer.safetensors", "objective.safetensors"})
    EXPECT_TRUE(read_text_file(checkpoint_folder(folder_ / "whole", 12) / file) ==
                read_text_file(checkpoint_folder(folder_ / "cut", 12) / file))
        << file;

  json["adapter"] = {{"type", "prefix"}, {"tokens", 2}};
  expect_error(ErrorKind::spec, "is not available with virtual tokens", [&] { open(json); });
}

TEST_F(Distillation, TheTeacherDropsNothing) {
  Json taught = teacher_recipe();
  taught["spec"]["layers"][0]["mixer"]["dropout"] = 0.5;
  teacher(taught);
  const Json json = recipe(json_of(R"([{"of": "logits"}, {"of": "hidden"}])"));
  const auto objective = open(json);
  const Recipe read = read_recipe(json, "");
  const model::Model model(read.spec, model::Weights::initial(read.spec, 3));
  const PackedBatch packed = some(*objective);
  const auto learn = [&](uint64_t key) {
    model::ForwardOptions forward;
    forward.training = true;
    forward.key = RandomKey(key);
    return objective->forward_backward(
        model, {packed, batch_of(packed), forward, objective->denominators(packed)});
  };
  EXPECT_EQ(learn(1), learn(2));
}

TEST_F(Distillation, LooksOnBesideEarlyExits) {
  Json json = recipe(json_of(R"([{"of": "hidden"}])"));
  json["spec"]["layers"][0]["repeat"] = 3;  // of two the first has no part in early exits
  const auto losses = [&] {
    const auto objective = open(json);
    const Recipe read = read_recipe(json, "");
    const model::Model model(read.spec, model::Weights::initial(read.spec, 3));
    return losses_of(*objective, model, some(*objective));
  };
  const LossSums without = losses();
  json["train"]["early_exit"] = {{"scale", 0.2}, {"curriculum", "all"}};
  const LossSums with = losses();
  EXPECT_EQ(with.at("hidden"), without.at("hidden"));
  EXPECT_GT(with.at("exit_2"), 0);
}

TEST_F(Distillation, MicroBatchesCountAsTheirTokensDo) {
  std::vector<std::string> weights;
  for (const int64_t parts : {1, 2}) {
    Json json = recipe(json_of(R"([{"of": "logits"}, {"of": "hidden"}, {"of": "attention"}])"));
    json["train"]["accumulate"] = parts;
    json["train"]["batch"] = 4 / parts;
    json["train"]["steps"] = 1;
    json["schedule"] = {{"type", "constant"}};
    const TrainResult result = train(read_recipe(json, ""), folder_ / std::to_string(parts), {});
    weights.push_back(result.checkpoint.string());
  }
  const model::Model one(load_model(weights[0])), two(load_model(weights[1]));
  for (const auto& [decl, weight] : one.weights().all())
    expect_near(two.weights().find(decl.name)->tensor(), weight->tensor(), 2e-5, decl.name.c_str());
}

TEST_F(Distillation, ATeacherMayBeAGgufWithItsBlocks) {
  const std::filesystem::path file = gguf_file(folder_, DType::q8_0);
  std::string text;  // its tokenizer knows digits and capitals
  for (int i = 0; i < 900; ++i) text += static_cast<char>(i % 3 == 0 ? '0' + i % 10 : 'A' + i % 7);
  Json json = tiny_recipe(folder_.write("capitals.txt", text));
  json["init"] = {{"from", file.string()}};
  json["objective"] = {{"type", "distillation"},
                       {"teacher", file.string()},
                       {"alpha", 1},
                       {"terms", json_of(R"([{"of": "logits"}, {"of": "hidden"}])")}};
  json.erase("spec");
  json["train"]["length"] = 8;
  const Recipe read = read_recipe(json, "");
  const auto objective = open_objective(read, folder_ / "cache");
  const model::Model model(read.spec, start_weights(read.model_plan()).weights);
  const LossSums losses = losses_of(*objective, model, some(*objective));
  EXPECT_NEAR(losses.at("logits"), 0, 1e-5);
  EXPECT_NEAR(losses.at("hidden"), 0, 1e-5);
}

TEST_F(Distillation, ATextWithoutWhatIsHiddenInItForADecoder) {
  PackedBatch packed;
  packed.ids = {5, 99, 7, 8, 99};
  packed.targets = {-1, 6, -1, 3, 4};
  packed.pieces = {{0, 0, 3}, {0, 3, 2}};
  const TeacherBatch read = clean_batch(packed);
  EXPECT_EQ(read.packed.ids, (std::vector<int64_t>{5, 6, 7, 3, 4}));
  EXPECT_EQ(read.rows, (std::vector<int64_t>{-1, 0, 1, -1, 3}));
}

TEST_F(Distillation, AHiddenTokenIsToldByADecoderFromThoseBefore) {
  Json json = recipe(json_of(R"([{"of": "logits"}])"));
  json["spec"]["arch"] = "encoder";
  json["spec"]["vocab"] = 257;
  json["spec"]["head"] = {{"type", "masked_lm"}};
  json["objective"]["inner"] = {{"type", "masked_lm"}, {"mask_id", 256}, {"rate", 0.3}};
  json["objective"]["alpha"] = 1;
  const Recipe read = read_recipe(json, "");
  const auto objective = open_objective(read, folder_ / "cache");
  const PackedBatch packed = some(*objective);
  const model::Model model(read.spec, model::Weights::initial(read.spec, 3)),
      teacher(load_model(folder_ / "teacher/latest"));
  const LossSums losses = losses_of(*objective, model, packed);
  const TeacherBatch clean = clean_batch(packed);
  const Tensor student = model.logits(model.hidden(batch_of(packed))),
               its = teacher.logits(teacher.hidden(batch_of(clean.packed)));
  double sum = 0, n = 0;
  for (size_t i = 0; i < packed.ids.size(); ++i) {
    if (packed.targets[i] < 0 || clean.rows[i] < 0) continue;
    sum += divergence(student.narrow(0, static_cast<int64_t>(i), 1).narrow(1, 0, 256),
                      its.narrow(0, clean.rows[i], 1), {})
               .item<double>();
    n += 1;
  }
  EXPECT_GT(n, 0);
  EXPECT_NEAR(losses.at("logits"), sum / n, 1e-5);
  EXPECT_EQ(objective->denominators(packed).of("logits"), n);
  // nobody foretells the mask
  const Tensor gradient = model.weights().find("head.bias")->dense_tensor().grad();
  EXPECT_EQ(gradient[256].item<double>(), 0);
  EXPECT_NE(gradient[49].item<double>(), 0);
  train(read, folder_ / "run", {});
}

TEST_F(Distillation, SourceAndAnswerAsOneTextForADecoder) {
  PackedBatch packed;
  packed.ids = {1, 10, 11, 1, 20};
  packed.targets = {10, 11, 12, 20, 21};
  packed.pieces = {{0, 0, 3}, {1, 3, 2}};
  packed.sources = {{50, 51}, {}};
  const TeacherBatch read = joined_batch(packed, true);
  EXPECT_EQ(read.packed.ids, (std::vector<int64_t>{50, 51, 10, 11, 20}));
  EXPECT_EQ(read.rows, (std::vector<int64_t>{1, 2, 3, -1, 4}));
  ASSERT_EQ(read.packed.pieces.size(), 2);
  EXPECT_EQ(read.packed.pieces[0].prefix, 2);
  EXPECT_EQ(read.packed.pieces[1].begin, 4);
  EXPECT_EQ(joined_batch(packed, false).packed.pieces[0].prefix, 0);
}

TEST_F(Distillation, AnEncoderDecoderLearnsFromADecoder) {
  std::string lines;
  for (int i = 0; i < 60; ++i)
    lines += fmt::format("{{\"in\": \"{}\", \"out\": \"{}\"}}\n", i, i + 1);
  const std::string pairs = folder_.write("pairs.jsonl", lines);
  Json json = recipe(json_of(R"([{"of": "logits"}])"));
  json["data"] = {{"train", {pairs}},   {"valid_fraction", 0.2}, {"format", "jsonl"},
                  {"source_key", "in"}, {"text_key", "out"},     {"tokenizer", "bytes"}};
  json["spec"] = json_of(R"({"tessera": 1, "arch": "encoder_decoder", "vocab": 256, "d_model": 16,
    "mixer": {"type": "attention", "n_heads": 2, "position": "rope"}, "ffn": {"type": "glu", "d_hidden": 32},
    "cross": {"type": "cross_attention", "n_heads": 2},
    "stacks": {"encoder": {"layers": [{}]}, "decoder": {"layers": [{}]}}})");
  const Recipe read = read_recipe(json, "");
  const TrainResult result = train(read, folder_ / "run", {});
  EXPECT_GT(result.last->losses.at("logits"), 0);
}

TEST(DistillationLayers, EvenlyAndLastToLast) {
  const auto text = [](int64_t t, int64_t s) {
    std::string out;
    for (const LayerPair& pair : even_layers(t, s))
      out += fmt::format("{}-{} ", pair.teacher, pair.student);
    return out;
  };
  EXPECT_EQ(text(4, 2), "1-0 3-1 ");
  EXPECT_EQ(text(12, 4), "2-0 5-1 8-2 11-3 ");
  EXPECT_EQ(text(2, 4), "0-1 1-3 ");
  EXPECT_EQ(text(3, 2), "0-0 2-1 ");
}

TEST_F(Distillation, WhatItRefuses) {
  const auto refuses = [&](const Json& json, const std::string& message) {
    expect_error(ErrorKind::spec, message, [&] { open(json); });
  };
  const auto of = [&](const char* term) { return recipe(Json::array({json_of(term)})); };
  Json json = of(R"({"of": "logits"})");
  json["objective"]["alpha"] = 1.5;
  refuses(json, "objective.alpha");
  json = of(R"({"of": "logits"})");
  json["objective"]["iner"] = nullptr;
  refuses(json, "(did you mean \"inner\"?)");
  json["objective"].erase("iner");
  json["objective"].erase("teacher");
  refuses(json, "teacher");
  json = of(R"({"of": "logits"})");
  json["objective"]["inner"] = json["objective"];
  refuses(json, "objective.inner");
  json = of(R"({"of": "logits"})");
  json["objective"].erase("terms");
  EXPECT_EQ(resolve(read_recipe(json, ""))["objective"]["terms"][0]["of"], "logits");
  json["objective"]["terms"] = Json::array();
  refuses(json, "objective.terms");
  json = of(R"({"of": "hidden"})");
  json["objective"]["layers"] = {{3, 0}};
  refuses(json, "layer 3 of the teacher, which has 3; expected 0 to 2");
  json["objective"]["layers"] = {{0, 2}};
  refuses(json, "layer 2 of the student, which has 2");
  json["objective"]["layers"] = {{0}};
  refuses(json, "objective.layers[0]");
  refuses(of(R"({"of": "hidden", "top_k": 3})"), "objective.terms[0].top_k");
  refuses(of(R"({"of": "logits", "beta": 0.3})"), "objective.terms[0].beta");
  refuses(of(R"({"of": "logits", "divergence": "jsd", "beta": 1})"), "objective.terms[0].beta");
  refuses(of(R"({"of": "logits", "temperature": 0})"), "objective.terms[0].temperature");
  refuses(of(R"({"of": "logits", "top_k": 256})"), "objective.terms[0].top_k");
  refuses(of(R"({"of": "hiden"})"), "hidden");
  json = of(R"({"of": "attention"})");
  json["spec"]["layers"][0]["mixer"] = {{"type", "mamba2"}, {"n_heads", 2}};
  refuses(json, "\"attention\" of layer 0 of the student: mixer \"mamba2\"");
  json = of(R"({"of": "mixer", "match": "heads"})");
  json["spec"]["layers"][0]["mixer"] = {{"type", "mamba2"}, {"n_heads", 2}};
  refuses(json, "shows outputs alone");
  json = of(R"({"of": "attention"})");
  json["spec"]["layers"][0]["mixer"]["n_heads"] = 4;
  refuses(json, "\"attention\" of 2 heads in layer 0 of the teacher, 4 in layer 0");
  json = of(R"({"of": "values", "heads": 3})");
  refuses(json, "objective.terms[0].heads");
  refuses(narrow(json_of(R"([{"of": "mixer"}])")), "expected the same width");
  json = of(R"({"of": "attention"})");
  json["train"]["recompute"] = {{"of", "layers"}};
  refuses(json, "train.recompute");
  json = of(R"({"of": "logits"})");
  json["data"]["tokenizer"] = gguf_file(folder_, std::nullopt).string();
  refuses(json, "expected a teacher with the same tokenizer");
  json = of(R"({"of": "logits"})");
  json["data"] = {{"type", "mqar"}, {"items", 2}};
  json["spec"]["vocab"] = 64;
  refuses(json, "has a vocabulary of 256, the spec one of 64");
  json = of(R"({"of": "logits"})");
  json["train"]["windows"] = "carried";
  json["train"]["carry_limit"] = 64;
  refuses(json, "train.windows");
  json = of(R"({"of": "logits"})");
  json["objective"]["teacher"] = (folder_ / "nowhere").string();
  expect_error(ErrorKind::file, "nowhere", [&] { open(json); });
}

TEST_F(Distillation, PathsAreRelativeToTheRecipesFile) {
  Json json = recipe(json_of(R"([{"of": "logits"}])"));
  json["objective"]["teacher"] = "../teacher";
  folder_.write("recipes/base.json", json.dump());
  folder_.write("other/recipe.json", R"({"extends": "../recipes/base.json"})");
  const auto teacher_of = [&](const char* file) {
    const Recipe read = load_recipe(folder_ / file);
    return std::filesystem::weakly_canonical(
        resolve(read)["objective"]["teacher"].get<std::string>());
  };
  const auto there = std::filesystem::weakly_canonical(folder_ / "teacher");
  EXPECT_EQ(teacher_of("recipes/base.json"), there);
  EXPECT_EQ(teacher_of("other/recipe.json"), there);
  // written out, it reads back as it was
  const Json resolved = resolve(load_recipe(folder_ / "recipes/base.json"));
  EXPECT_EQ(resolve(read_recipe(resolved, "")), resolved);
}

}  // namespace
}  // namespace tessera::train::distillation_test
