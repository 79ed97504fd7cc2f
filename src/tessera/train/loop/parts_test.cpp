// The parts of a run: parameters and their groups, start weights, losses of parts, one evaluator.
#include "tessera/convert/checkpoint.h"
#include "tessera/format/gguf.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/infer/evaluation/evaluate.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/loop/init_weights.h"
#include "tessera/train/gguf_testing.h"
#include "tessera/train/train_testing.h"
#include "tessera/train/loop/trainer.h"

namespace tessera::train::parts_test {
namespace {

namespace fs = std::filesystem;

struct Setting {
  TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));

  Recipe recipe(const std::vector<std::string>& overrides = {}) const {
    return read_recipe(json, "", overrides);
  }
  TrainResult train(const std::string& name,
                    const std::vector<std::string>& overrides = {},
                    const TrainOptions& options = {}) const {
    return train::train(recipe(overrides), folder / name, options);
  }
  std::vector<Json> log(const std::string& name) const {
    std::vector<Json> lines;
    const std::string text = read_text_file(folder / name / "log.jsonl");
    for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
      end = text.find('\n', begin);
      lines.push_back(json_of(std::string_view(text).substr(begin, end - begin)));
    }
    return lines;
  }
};

std::map<std::string, std::vector<float>> values_in(const fs::path& file) {
  std::map<std::string, std::vector<float>> out;
  const format::TensorFile tensors = format::open_safetensors(file);
  for (const auto& view : tensors.tensors()) {
    const auto* from = reinterpret_cast<const float*>(view.data.data());
    out[view.name].assign(from, from + view.data.size() / sizeof(float));
  }
  return out;
}

// --- parameters ----------------------------------------------------------------------------------

TEST(ParameterSet, MatchesNamesByStars) {
  for (const char* pattern : {"*", "layers.*.q.*", "layers.0.mixer.q.weight", "*weight", "l*q*t"})
    EXPECT_TRUE(matches("layers.0.mixer.q.weight", pattern)) << pattern;
  for (const char* pattern : {"", "layers", "*.q", "q*", "layers.*.k.*", "*weights"})
    EXPECT_FALSE(matches("layers.0.mixer.q.weight", pattern)) << pattern;
}

TEST(ParameterSet, GroupsByDecayAndName) {
  Setting s;
  s.json["optimizer"]["weight_decay"] = 0.2;
  s.json["optimizer"]["groups"] = {{{"match", {"layers.0.*"}}, {"lr_factor", 0.5}},
                                   {{"match", {"embed.*"}}, {"weight_decay", 0.0}},
                                   {{"match", {"layers.1.ffn.*"}}, {"frozen", true}}};
  const Recipe recipe = s.recipe();
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 1));
  const ParameterSet set(model, recipe.optimizer);
  size_t norms = 0;
  for (const ParameterSet::Entry& entry : set.trained()) {
    const ParameterGroup& group = set.group_of(entry);
    const std::string& name = entry.decl.name;
    EXPECT_FALSE(name.starts_with("layers.1.ffn.")) << name;
    EXPECT_EQ(group.lr_factor, name.starts_with("layers.0.") ? 0.5 : 1) << name;
    const bool norm = name.find("norm") != std::string::npos;
    norms += norm ? 1 : 0;
    EXPECT_EQ(group.weight_decay, norm || name.starts_with("embed.") ? 0 : 0.2) << name;
  }
  EXPECT_GT(norms, 2u);
  EXPECT_FALSE(set.frozen().empty());
  for (const std::string& name : set.frozen()) EXPECT_TRUE(name.starts_with("layers.1.ffn."));
  EXPECT_EQ(set.trained().size() + set.frozen().size(), model.weights().all().size());
}

TEST(ParameterSet, RefusesRulesWithoutParametersAndNothingToTrain) {
  Setting s;
  const auto refused = [&](const Json& groups, const char* reason) {
    s.json["optimizer"]["groups"] = groups;
    const Recipe recipe = s.recipe();
    const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 1));
    expect_error(ErrorKind::spec, reason, [&] { ParameterSet(model, recipe.optimizer); });
  };
  refused({{{"match", {"blocks.*"}}}},
          "[optimizer.groups[0].match] \"blocks.*\" matches no parameter of this model");
  refused({{{"match", {"*"}}, {"frozen", true}}}, "parameters are frozen; expected one to train");
}

TEST(ParameterSet, FrozenOnesAreNotTouched) {
  Setting s;
  s.json["optimizer"]["groups"] = {{{"match", {"embed.*", "layers.0.*"}}, {"frozen", true}}};
  s.json["spec"]["head"] = "linear";
  const Recipe recipe = s.recipe();
  const TrainResult result = s.train("a", {"train.steps=4"});
  const auto after = values_in(result.checkpoint / "model.safetensors");
  const auto fresh = model::Weights::initial(recipe.spec, 0);
  const auto moments = values_in(result.checkpoint / "optimizer.safetensors");
  for (const auto& [decl, weight] : fresh.all()) {
    const auto* from = static_cast<const float*>(weight->data());
    const std::vector<float> before(from, from + decl.elements());
    const bool frozen = decl.name.starts_with("embed.") || decl.name.starts_with("layers.0.");
    EXPECT_EQ(after.at(decl.name) == before, frozen) << decl.name;
    EXPECT_EQ(moments.count("first_moment." + decl.name), frozen ? 0u : 1u) << decl.name;
  }
  // what only the head learns needs no gradient behind it
  s.json["optimizer"]["groups"] = {
      {{"match", {"embed.*", "layers.*", "*norm*"}}, {"frozen", true}}};
  EXPECT_LT(s.train("head", {"train.steps=30"}).last->loss, 5.4);
  // and a run of some parameters resumes as any other
  s.train("cut", {"train.steps=30", "schedule.type=constant"});
}

// --- start weights -------------------------------------------------------------------------------

TEST(StartWeights, AreThoseOfARunsCheckpoint) {
  Setting s;
  s.json["data"]["tokenizer"] = "bytes";
  const TrainResult first = s.train("first", {"train.steps=40"});
  s.json["init"] = {{"from", (s.folder / "first").string()}};
  s.json.erase("spec");  // the model's
  std::vector<std::string> said;
  const TrainResult second =
      s.train("second", {"train.steps=1", "schedule.warmup=0"},
              {.on_start = [&](const std::string& line) { said.push_back(line); }});
  EXPECT_LT(second.last->loss, 3.2);  // a fresh one has ln 256 = 5.5
  ASSERT_EQ(said.size(), 3u);         // and the defaults in force and the states of the optimiser
  EXPECT_NE(said[0].find("parameters loaded"), std::string::npos) << said[0];
  // a run that goes on needs the model no more
  fs::remove_all(s.folder / "first");
  s.json["spec"] = json_of(read_text_file(s.folder / "second/recipe.json"))["spec"];
  EXPECT_FALSE(s.train("second", {"train.steps=1", "schedule.warmup=0"}, {.resume = true}).last);
}

TEST(StartWeights, AreThoseOfAConvertedModel) {
  Setting s;
  s.json["spec"]["norm"] = "rms_norm";
  s.json["spec"]["context"] = 2048;
  s.json["spec"]["ffn"] = {{"type", "glu"}, {"act", "silu"}, {"d_hidden", 32}};
  const TrainResult first = s.train("first", {"train.steps=40"});
  s.json["data"]["tokenizer"] = "bytes";
  const convert::Checkpoint own = convert::load_checkpoint(first.checkpoint);
  const fs::path hf = s.folder / "hf";
  convert::HfOptions how;
  how.family = "llama";
  how.float32 = true;
  convert::write_hf_folder(own, hf, how);
  s.json["init"] = {{"from", hf.string()}};
  const StartWeights start = start_weights(s.recipe().model_plan());
  ASSERT_TRUE(start.report);
  EXPECT_TRUE(start.report->newly_initialized.empty() && start.report->unused_parameters.empty());
  EXPECT_EQ(start.report->kept, static_cast<int64_t>(start.weights.all().size()));
  const auto want = values_in(first.checkpoint / "model.safetensors");
  for (const auto& [decl, weight] : start.weights.all()) {
    const auto* values = static_cast<const float*>(weight->data());
    EXPECT_EQ(want.at(decl.name), std::vector<float>(values, values + decl.elements()))
        << decl.name;
    EXPECT_TRUE(weight->dense_tensor().requires_grad());
  }
  const TrainResult second =
      s.train("second", {"train.steps=1", "schedule.type=constant", "schedule.warmup=0"});
  EXPECT_LT(second.last->loss, 3.2);
  // the run remembers the family that it began from, and goes back into its files
  const auto goes_back = [&](const fs::path& checkpoint) {
    const convert::Checkpoint run = convert::load_checkpoint(checkpoint);
    EXPECT_EQ(run.family, "llama");
    EXPECT_EQ(run.foreign_dialect, "hf");
    const fs::path out = s.folder / "again" / checkpoint.filename();
    convert::write_hf_folder(run, out);
    EXPECT_EQ(convert::load_checkpoint(out).spec_json, run.spec_json);
  };
  goes_back(second.checkpoint);
  // and so does one that goes on without that model
  s.json["spec"] = json_of(read_text_file(s.folder / "second/recipe.json"))["spec"];
  fs::remove_all(hf);
  const TrainResult third = s.train(
      "second", {"train.steps=2", "schedule.type=constant", "schedule.warmup=0"}, {.resume = true});
  EXPECT_EQ(third.step, 2);
  goes_back(third.checkpoint);
}

TEST(StartWeights, AreThoseOfAGgufFile) {
  for (const std::optional<DType> blocks : {std::optional<DType>(), {DType::q8_0}}) {
    Setting s;
    const fs::path file = gguf_file(s.folder, blocks);
    const infer::LoadedModel from = infer::load_model(file);
    // the file's own spec and tokenizer, which knows digits and capitals
    std::string text;
    for (int i = 0; i < 900; ++i)
      text += static_cast<char>(i % 3 == 0 ? '0' + i % 10 : 'A' + i % 7);
    s.json["data"]["train"] = {s.folder.write("capitals.txt", text)};
    s.json["init"] = {{"from", file.string()}};
    s.json.erase("spec");
    const Recipe recipe = s.recipe();
    EXPECT_EQ(model::resolve(recipe.spec), from.source.spec_json);
    const StartWeights start = start_weights(recipe.model_plan());
    ASSERT_TRUE(start.report);
    EXPECT_EQ(start.report->kept, std::ssize(start.weights.all()));
    EXPECT_TRUE(start.report->newly_initialized.empty() && start.report->unused_parameters.empty());
    EXPECT_EQ(start.report->differs, "");
    for (const auto& [decl, weight] : start.weights.all()) {
      EXPECT_TRUE(at::equal(weight->dense_tensor(), from.model.weights().find(decl.name)->tensor()))
          << decl.name;
      EXPECT_TRUE(weight->trainable());
    }
    // what it learns is a model with that tokenizer, and goes on
    const std::vector<std::string> constant = {"schedule.type=constant", "optimizer.lr=0.003",
                                               "train.steps=2"};
    const TrainResult first = s.train("run", constant);
    EXPECT_TRUE(std::isfinite(first.last->loss));
    const infer::LoadedModel learned = infer::load_model(first.checkpoint);
    ASSERT_TRUE(learned.tokenizer);
    EXPECT_EQ(learned.tokenizer->encode("B3A!\""), from.tokenizer->encode("B3A!\""));
    const std::vector<std::string> longer = {"schedule.type=constant", "optimizer.lr=0.003",
                                             "train.steps=60"};
    EXPECT_LT(s.train("run", longer, {.resume = true}).last->loss, first.last->loss - 0.5);
  }
}

TEST(StartWeights, OfAGgufFileThatIsNoneAreRefused) {
  Setting s;
  s.json["init"] = {{"from", s.folder.write("half.gguf", "GGUF\x03")}};
  expect_error(ErrorKind::file, "half.gguf", [&] { s.recipe(); });
  s.json["data"]["tokenizer"] = "bytes";
  expect_error(ErrorKind::file, "half.gguf", [&] { start_weights(s.recipe().model_plan()); });
}

TEST(StartWeights, SayWhatIsNewAndWhatIsDropped) {
  Setting s;
  s.train("first", {"train.steps=2"});
  s.json["init"] = {{"from", (s.folder / "first").string()}};
  s.json["spec"]["layers"][0]["repeat"] = 3;
  s.json["spec"]["residual"] = {{"type", "pre_norm"}, {"dropout", 0.1}};
  expect_error(ErrorKind::spec, "lacks parameters \"layers.2.",
               [&] { start_weights(s.recipe().model_plan()); });
  s.json["init"]["partial"] = true;
  const StartWeights more = start_weights(s.recipe().model_plan());
  EXPECT_FALSE(more.report->newly_initialized.empty());
  for (const std::string& name : more.report->newly_initialized)
    EXPECT_TRUE(name.starts_with("layers.2.")) << name;
  const auto lines = more.report->lines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_NE(lines[1].find("newly initialized ("), std::string::npos) << lines[1];
  EXPECT_NE(lines[2].find("architecture differs from the checkpoint's, first at \"spec."),
            std::string::npos)
      << lines[2];
  s.json["spec"]["layers"][0]["repeat"] = 1;
  s.json["init"]["partial"] = false;
  expect_error(ErrorKind::spec, "has extra parameters \"layers.1.",
               [&] { start_weights(s.recipe().model_plan()); });
  s.json["init"]["partial"] = true;
  const StartWeights fewer = start_weights(s.recipe().model_plan());
  EXPECT_FALSE(fewer.report->unused_parameters.empty());
  for (const std::string& name : fewer.report->unused_parameters)
    EXPECT_TRUE(name.starts_with("layers.1.")) << name;
  // another shape is never taken
  s.json["spec"]["ffn"]["d_hidden"] = 24;
  expect_error(ErrorKind::spec, "the spec wants [24, 16]; the specs differ first at",
               [&] { start_weights(s.recipe().model_plan()); });
}

// --- losses --------------------------------------------------------------------------------------

TEST(Objective, LossesOfPartsHaveNamesAndDenominatorsOfTheirOwn) {
  Setting s;
  s.json["spec"]["layers"][0]["mixer"] = json_of(
      R"({"type": "compressive", "n_heads": 2, "segment": 4, "mem_len": 4, "n_compressed": 4,
          "rate": 2})");
  // every text ends within a window: fewer targets than tokens
  std::string lines;
  for (int i = 0; i < 60; ++i) lines += Json{{"text", counting_text(14)}}.dump() + "\n";
  s.json["data"]["train"] = {s.folder.write("docs.jsonl", lines)};
  s.json["data"]["format"] = "jsonl";
  const Recipe recipe = s.recipe();
  const auto objective = open_objective(recipe, s.folder / "cache");
  EXPECT_EQ(objective->name(), "causal_lm");
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 1));
  std::vector<int64_t> begun;
  const PackedBatch packed = objective->source().train(0, 4, begun);
  const Denominators whole = objective->denominators(packed);
  EXPECT_EQ(whole.tokens, 64);
  EXPECT_LT(whole.of("loss"), 64);
  EXPECT_EQ(whole.of("layers.0.mixer.reconstruction"), 64);
  const auto gradient = [&](const Denominators& how) {
    for (const auto& [decl, weight] : model.weights().all())
      Tensor(weight->dense_tensor()).mutable_grad() = Tensor();
    model::ForwardOptions forward;
    forward.training = true;
    const LossSums sums =
        objective->forward_backward(model, {packed, batch_of(packed), forward, how});
    EXPECT_EQ(sums.size(), 3u);  // the main one, and one of each layer
    return model.weights().find("layers.0.mixer.compress.weight")->dense_tensor().grad().clone();
  };
  // gradients stop at the memory: only the reconstruction reaches the compression
  const Tensor once = gradient(whole);
  EXPECT_GT(once.abs().max().item<double>(), 0);
  Denominators twice = whole;
  twice.tokens *= 2;
  EXPECT_TRUE(at::allclose(gradient(twice) * 2, once, 1e-5, 0));
  twice = whole;
  twice.losses["loss"] *= 2;
  EXPECT_TRUE(at::allclose(gradient(twice), once, 1e-5, 0));
  s.train("a", {"train.steps=2"});
  EXPECT_TRUE(s.log("a")[0].contains("losses"));
  EXPECT_TRUE(s.log("a")[0]["losses"].contains("layers.0.mixer.reconstruction"));
}

// --- one evaluator -------------------------------------------------------------------------------

TEST(Evaluation, OfACheckpointIsWhatTheRunLogged) {
  const Setting s;
  const std::string text = counting_text(700);
  const std::string valid = s.folder.write("valid.txt", text);
  const TrainResult result =
      s.train("a", {"train.steps=20", "data.valid_fraction=0", "data.valid=[\"" + valid + "\"]"});
  const infer::LoadedModel loaded = infer::load_model(result.checkpoint);
  const auto ids = loaded.tokenizer->encode(text);
  // as many targets a window
  const infer::EvalResult again = infer::evaluate(loaded.model, {ids.begin(), ids.end()},
                                                  {.window = s.recipe().train.length + 1});
  EXPECT_EQ(again.targets, 699);
  EXPECT_NEAR(again.nll, *result.last->valid_loss, 1e-12 * again.nll);
}

}  // namespace
}  // namespace tessera::train::parts_test
