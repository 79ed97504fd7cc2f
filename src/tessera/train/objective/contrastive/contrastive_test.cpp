// Training by texts that belong together.
#include "tessera/train/objective/contrastive/contrastive.h"

#include "tessera/convert/text_settings.h"
#include "tessera/format/safetensors.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/loop/init_weights.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/objective/contrastive/contrastive_source.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::contrastive_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kColours[] = {"red", "green", "blue", "white", "black", "grey"};
constexpr const char* kThings[] = {"cat", "dog", "car", "tree", "boat", "hat", "sun", "cup"};

/// A thing of a colour, told in two ways, as JSON lines.
std::string told_twice(bool negatives) {
  std::string lines;
  for (const char* colour : kColours)
    for (const char* thing : kThings) {
      Json line = {{"text", fmt::format("the {} is {}", thing, colour)},
                   {"positive", fmt::format("a {} {}", colour, thing)}};
      if (negatives) line["negatives"] = {fmt::format("a {} {}", kColours[0], kThings[1])};
      lines += line.dump() + "\n";
    }
  return lines;
}

struct Setting {
  TemporaryFolder folder;
  Json json = tiny_recipe("");

  explicit Setting(const std::string& lines = told_twice(false),
                   const std::string& name = "pairs.jsonl") {
    json["spec"]["arch"] = "encoder";
    json["spec"]["head"] = nullptr;
    json["spec"]["d_model"] = 32;
    json["data"] = {{"train", {folder.write(name, lines)}}, {"valid_fraction", 0.25}};
    json["train"]["length"] = 24;
    json["objective"] = {{"type", "contrastive"}};
  }
  Recipe recipe(const std::vector<std::string>& changes = {}) const {
    return read_recipe(json, "", changes);
  }
  std::unique_ptr<Objective> open(const std::vector<std::string>& changes = {}) const {
    return open_objective(recipe(changes), folder / "cache");
  }
  fs::path run(const std::string& name) const { return folder / name; }
};

std::string text_of(const PackedBatch& batch, size_t piece) {
  const PackedDocument& p = batch.pieces.at(piece);
  return {batch.ids.begin() + p.begin, batch.ids.begin() + p.begin + p.length};
}

TEST(ContrastiveSource, ReadsPairsTripletsAndTables) {
  const Setting pairs(
      "{\"text\": \"a\", \"positive\": \"b\"}\n"
      "{\"text\": \"c\", \"positive\": \"b\", \"negatives\": [\"d\", \"e\"]}\n");
  const auto source = open_source(pairs.recipe({"data.valid_fraction=0"}), pairs.folder / "cache");
  std::vector<int64_t> begun;
  const PackedBatch both = source->train(0, 2, begun);
  ASSERT_EQ(both.pieces.size(), 6u);
  std::map<std::string, int64_t> numbers;
  std::string names;
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(numbers.emplace(text_of(both, i), both.items[i]).first->second, both.items[i]);
    names += both.names[i].substr(0, 1);
  }
  EXPECT_EQ(numbers.size(), 5u);  // "b" twice
  EXPECT_TRUE(names == "tptpnn" || names == "tpnntp") << names;
  EXPECT_EQ(both.n_targets, 0);

  const Setting table("anchor\tpositive\tnegative\nan \"a\"\tb\tc\nd\te\tf\n", "t.tsv");
  const auto rows = open_source(table.recipe({"data.valid_fraction=0", "data.text_key=\"anchor\"",
                                              "objective.negatives_key=\"negative\""}),
                                table.folder / "cache");
  const PackedBatch batch = rows->train(0, 2, begun);
  ASSERT_EQ(batch.pieces.size(), 6u);
  EXPECT_TRUE(text_of(batch, 0) == "an \"a\"" || text_of(batch, 0) == "d");
}

TEST(ContrastiveSource, SaysWhatIsWrong) {
  const auto bad = [](const std::string& lines, ErrorKind kind, const char* what) {
    SCOPED_TRACE(lines);
    const Setting s(lines);
    expect_error(kind, what, [&] { s.open({"data.valid_fraction=0"}); });
  };
  const std::string good = "{\"text\": \"a\", \"positive\": \"b\"}\n";
  bad(good + "{\"positive\": \"b\"}\n", ErrorKind::file, "line 2: \"text\" is missing");
  bad(good + "{\"text\": \"c\"}\n", ErrorKind::file,
      "line 2: \"positive\" is missing, which other lines have");
  bad(good + "{\"text\": \"c\", \"positive\": \"\"}\n", ErrorKind::file,
      "line 2: \"positive\" is empty");
  bad(good + "{\"text\": \"c\", \"positive\": \"b\", \"negatives\": [1]}\n", ErrorKind::file,
      "line 2: \"negatives\" holds an integer");
  bad(good + "{\"text\": \"c\", \"positive\": \"b\", \"score\": 3}\n", ErrorKind::file,
      "expected such lines in data.valid alone");
  bad(good, ErrorKind::input, "1 example to learn from; expected at least 2");
  const Setting alone("{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
  expect_error(ErrorKind::spec,
               "paired with itself under another dropout mask, and the spec has dropout",
               [&] { alone.open({"data.valid_fraction=0"}); });
}

TEST(Contrastive, ACheckpointSaysHowItsVectorsAreMade) {
  const Setting s;
  const auto trained = [&](const std::string& name, std::vector<std::string> changes) {
    changes.emplace_back("train.steps=1");
    train(s.recipe(changes), s.run(name));
    return convert::sentence_modules_of(s.run(name));
  };
  const convert::SentenceModules first = trained("cls", {"objective.pooling=\"cls\""});
  EXPECT_TRUE(first.stated);
  EXPECT_EQ(first.poolings, (std::vector{convert::Pooling::cls}));
  EXPECT_TRUE(first.normalize);
  EXPECT_EQ(convert::poolings_of_folder(s.run("cls")), (std::vector{convert::Pooling::cls}));

  // what the model that it begins from says stays, where the pooling is the same
  const fs::path start = checkpoint_folder(s.run("cls"), 1);
  s.folder.write("cls/step-1/config_sentence_transformers.json",
                 R"({"prompts": {"query": "ask: "}})");
  const auto begun = [&](const std::string& name, const std::string& pooling) {
    Setting other;
    other.json.erase("spec");
    other.json["init"] = {{"from", start.string()}};
    other.json["objective"]["pooling"] = pooling;
    other.json["train"]["steps"] = 1;
    train(other.recipe(), s.run(name));
    return convert::sentence_modules_of(s.run(name));
  };
  const convert::SentenceModules same = begun("same", "cls"), mean = begun("mean", "mean");
  EXPECT_EQ(same.poolings, (std::vector{convert::Pooling::cls}));
  EXPECT_TRUE(same.prompts.contains("query"));
  EXPECT_EQ(mean.poolings, (std::vector{convert::Pooling::mean}));
}

TEST(Contrastive, AnAdapterSaysHowItsVectorsAreMade) {
  const Setting s;
  train(s.recipe({"train.steps=1"}), s.run("base"));
  Setting other;
  other.json.erase("spec");
  other.json["init"] = {{"from", s.run("base").string()}};
  other.json["adapter"] = {{"rank", 2}};
  other.json["objective"]["pooling"] = "max";
  other.json["train"]["steps"] = 1;
  train(other.recipe(), s.run("adapter"));
  EXPECT_EQ(convert::sentence_modules_of(s.run("base")).poolings,
            (std::vector{convert::Pooling::mean}));
  const std::vector<std::string> adapters = {s.run("adapter").string()};
  EXPECT_EQ(convert::sentence_modules_of(s.run("base"), adapters).poolings,
            (std::vector{convert::Pooling::max}));
}

TEST(Contrastive, WhatComesAfterThePoolingIsLeftOutAndTheRestKept) {
  const Setting s;
  const TemporaryFolder start, out;
  const auto copy = [&](const char* name) {
    std::filesystem::copy(checkpoint_folder(s.run("base"), 1) / name, start / name);
  };
  train(s.recipe({"train.steps=1"}), s.run("base"));
  copy("model.safetensors");
  start.write("modules.json", R"([{"type": "x.Transformer", "path": ""},
      {"type": "x.Pooling", "path": "1_Pooling"}, {"type": "x.LayerNorm", "path": "2_Norm"}])");
  start.write("1_Pooling/config.json", R"({"pooling_mode": "mean", "include_prompt": false})");
  start.write("2_Norm/config.json", R"({"dimension": 32})");
  const std::vector<float> ones(32, 1.0f);
  const std::vector<format::TensorView> norm = {
      {"norm.weight", DType::f32, {32}, std::as_bytes(std::span(ones)), nullptr},
      {"norm.bias", DType::f32, {32}, std::as_bytes(std::span(ones)), nullptr}};
  format::write_safetensors(start / "2_Norm/model.safetensors", norm);
  start.write("sentence_bert_config.json", R"({"max_seq_length": 21})");
  start.write("config_sentence_transformers.json", R"({"prompts": {"query": "ask: "}})");
  ASSERT_EQ(convert::sentence_modules_of(start.path()).layers.size(), 1u);
  Setting other;
  other.json.erase("spec");
  other.json["init"] = {{"from", start.path().string()}};
  const Recipe recipe = other.recipe();
  recipe.objective->write_settings(recipe.model_plan(), out.path());
  const convert::SentenceModules said = convert::sentence_modules_of(out.path());
  EXPECT_TRUE(said.layers.empty());
  EXPECT_EQ(said.poolings, (std::vector{convert::Pooling::mean}));
  EXPECT_FALSE(said.include_prompt);
  EXPECT_EQ(said.prompts.at("query"), "ask: ");
  EXPECT_EQ(said.max_tokens, 21);
  // modules that no vector can be made by are said at once, not at the first checkpoint
  start.write("modules.json", R"([{"type": "x.Transformer", "path": ""},
      {"type": "x.Pooling", "path": "1_Pooling"}, {"type": "x.LSTM", "path": "2_Norm"}])");
  expect_error(ErrorKind::file, "module \"x.LSTM\" is not supported", [&] { other.recipe(); });
}

TEST(ContrastiveSource, ABadRecipeIsSaidAtOnce) {
  const Setting s;
  const auto refused = [&](const char* change, const char* what) {
    SCOPED_TRACE(change);
    expect_error(ErrorKind::spec, what, [&] { s.recipe({change}); });
  };
  refused("objective.temperature=0", "[objective.temperature] found 0; expected more than 0");
  refused("objective.pooling=\"pooler\"", "[objective.pooling] \"pooler\", and the spec has none");
  refused("objective.dims=[8, 32]", "[objective.dims[1]] found 32; expected 1 to 31");
  refused("train.z_loss=0.1", "[train.z_loss]");
  refused("objective.temprature=1", "temprature");
}

/// The gradients of every parameter together, of an update of batches of `micro` samples.
Tensor gradients(const Objective& objective,
                 const model::Model& model,
                 int64_t samples,
                 int64_t micro,
                 LossSums& sums,
                 double loss_scale = 1) {
  std::vector<PackedBatch> parts;
  Denominators whole;
  std::vector<int64_t> begun;
  for (int64_t first = 0; first < samples; first += micro) {
    parts.push_back(objective.source().train(first, micro, begun));
    whole += objective.denominators(parts.back());
  }
  whole.loss_scale = loss_scale;
  for (const auto& [decl, weight] : model.weights().all())
    Tensor(weight->dense_tensor()).mutable_grad() = Tensor();
  model::ForwardOptions forward;
  forward.training = true;
  forward.key = RandomKey(3);
  Update update{parts};
  for (const PackedBatch& part : parts)
    for (const auto& [name, sum] :
         objective.forward_backward(model, {part, batch_of(part), forward, whole, &update}))
      sums[name] += sum;
  EXPECT_EQ(update.view != nullptr, parts.size() > 1);
  std::vector<Tensor> all;
  for (const auto& [decl, weight] : model.weights().all())
    all.push_back(weight->dense_tensor().grad().flatten());
  return at::cat(all);
}

TEST(Contrastive, SeveralBatchesAreOneLargeOne) {
  for (const bool decoder : {false, true}) {
    Setting s(told_twice(true));
    s.json["spec"]["residual"] = {{"type", "pre_norm"}, {"dropout", 0.3}};
    if (decoder) {
      s.json["spec"]["arch"] = "decoder";
      s.json["spec"]["head"] = {{"type", "tied"}};
      s.json["objective"]["pooling"] = "last";
    }
    s.json["objective"]["dims"] = {8};
    s.json["objective"]["symmetric"] = true;
    const Recipe recipe = s.recipe();
    const auto objective = open_objective(recipe, s.folder / "cache");
    const model::Model model(recipe.spec, start_weights(recipe.model_plan()).weights);
    LossSums of_one, of_four, of_each;
    const Tensor one = gradients(*objective, model, 12, 12, of_one),
                 four = gradients(*objective, model, 12, 3, of_four);
    const double norm = one.norm().item<double>();
    EXPECT_GT(norm, 1e-3);
    EXPECT_LT((one - four).norm().item<double>(), 1e-5 * norm);
    for (const auto& [name, sum] : of_one) EXPECT_NEAR(of_four.at(name), sum, 1e-4) << name;
    // in fp16 all gradients are multiplied by a power of 2
    LossSums scaled;
    for (const int64_t micro : {12, 3})
      EXPECT_LT((gradients(*objective, model, 12, micro, scaled, 1024) / 1024 -
                 (micro == 12 ? one : four))
                    .norm()
                    .item<double>(),
                1e-6 * norm);
    // which is another thing than four small ones, each with its own negatives
    double apart = 0;
    std::vector<int64_t> begun;
    for (int64_t first = 0; first < 12; first += 3) {
      LossSums sums;
      const PackedBatch part = objective->source().train(first, 3, begun);
      model::ForwardOptions forward;
      forward.training = true;
      forward.key = RandomKey(3);
      apart += objective
                   ->forward_backward(
                       model, {part, batch_of(part), forward, objective->denominators(part)})
                   .at("loss");
    }
    EXPECT_GT(of_one.at("loss"), apart + 1);
  }
}

TEST(Contrastive, LearnsWhatBelongsTogetherAndGoesOnBitForBit) {
  Setting s;
  s.json["spec"]["residual"] = {{"type", "pre_norm"}, {"dropout", 0.1}};
  s.json["train"]["steps"] = 60;
  s.json["train"]["batch"] = 6;
  s.json["train"]["accumulate"] = 3;
  s.json["checkpoint"]["every"] = 25;
  s.json["objective"]["symmetric"] = true;
  s.json["objective"]["dims"] = {8};
  std::vector<LogLine> lines;
  const TrainResult whole =
      train(s.recipe(), s.run("whole"),
            {.on_step = [&](const LogLine& line, int64_t) { lines.push_back(line); }});
  ASSERT_TRUE(whole.last && whole.last->valid_loss && whole.last->accuracy);
  // 12 are held out, of 18 in a batch each is one
  EXPECT_LT(lines.back().loss, 0.5 * lines.front().loss);
  EXPECT_GT(lines.back().losses.at("accuracy"), lines.front().losses.at("accuracy"));
  EXPECT_GT(*whole.last->accuracy, 0.4);
  EXPECT_GE(whole.last->scores.at("mrr"), *whole.last->accuracy);
  EXPECT_TRUE(whole.last->scores.contains("accuracy_8"));

  CancelToken cancel;
  const auto stop = [&](const LogLine& line, int64_t) {
    if (line.step == 31) cancel.request(15);
  };
  expect_error(ErrorKind::cancelled, "",
               [&] { train(s.recipe(), s.run("cut"), {.cancel = &cancel, .on_step = stop}); });
  train(s.recipe(), s.run("cut"), {.resume = true});
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(read_text_file(checkpoint_folder(s.run("whole"), 60) / file) ==
                read_text_file(checkpoint_folder(s.run("cut"), 60) / file))
        << file;
  // who embeds with the run pools as it was trained
  const convert::SentenceModules said = convert::sentence_modules_of(s.run("whole"));
  EXPECT_TRUE(said.stated);
  EXPECT_EQ(said.poolings, std::vector{convert::Pooling::mean});
  EXPECT_TRUE(said.normalize);
}

TEST(Contrastive, CheckpointsSayHowTheyPool) {
  using convert::Pooling;
  for (const auto& [name, pooling] : {std::pair{"cls", Pooling::cls}, {"max", Pooling::max}}) {
    Setting s;
    s.json["objective"]["pooling"] = name;
    const TemporaryFolder out;
    const Recipe recipe = s.recipe();
    recipe.objective->write_settings(recipe.model_plan(), out.path());
    EXPECT_EQ(convert::sentence_modules_of(out.path()).poolings, std::vector{pooling}) << name;
  }
}

TEST(Contrastive, ATextIsItsOwnPositiveUnderOtherDropout) {
  std::string lines;
  for (const char* colour : kColours)
    for (const char* thing : kThings)
      lines += Json{{"text", fmt::format("the {} is {}", thing, colour)}}.dump() + "\n";
  Setting s(lines);
  s.json["spec"]["residual"] = {{"type", "pre_norm"}, {"dropout", 0.2}};
  s.json["data"]["valid_fraction"] = 0;
  // people said how alike these are, more and more
  std::string scored;
  const char* others[] = {"seven boats", "a cup of tea", "the cat is blue", "the cat is red"};
  for (int i = 0; i < 4; ++i)
    scored += Json{{"text", "the cat is red"}, {"positive", others[i]}, {"score", i}}.dump() + "\n";
  s.json["data"]["valid"] = {s.folder.write("scored.jsonl", scored)};
  const auto objective = s.open();
  std::vector<int64_t> begun;
  const PackedBatch batch = objective->source().train(0, 4, begun);
  ASSERT_EQ(batch.pieces.size(), 8u);
  EXPECT_EQ(text_of(batch, 0), text_of(batch, 1));
  EXPECT_EQ(batch.items[0], batch.items[1]);
  EXPECT_EQ(objective->source().notes().front(),
            "no line has a positive: every text is its own, with other dropout");

  const Recipe recipe = s.recipe();
  const model::Model model(recipe.spec, start_weights(recipe.model_plan()).weights);
  model::ForwardOptions forward;
  forward.training = true;
  const nn::Batch tensors = batch_of(batch);
  const Tensor v = text_vectors(model, model.hidden(tensors, forward), tensors, TextVector::mean);
  EXPECT_GT((v[0] - v[1]).norm().item<double>(), 1e-2);
  const TrainResult result = train(s.recipe({"train.steps=40", "train.batch=16"}), s.run("a"));
  ASSERT_TRUE(result.last && result.last->valid_loss);
  const double spearman = result.last->scores.at("spearman");
  EXPECT_NEAR(*result.last->valid_loss, 1 - spearman, 1e-12);
  EXPECT_GT(spearman, 0.7);  // equal texts are the nearest in any case
}

TEST(Contrastive, PoolsAsItIsTold) {
  const Setting s;
  const Recipe recipe = s.recipe();
  const model::Model model(recipe.spec, start_weights(recipe.model_plan()).weights);
  nn::Batch batch = nn::Batch::of({{1, 2, 3}, {4, 5}});
  const Tensor x_ND = at::randn({5, 3});
  const auto pooled = [&](TextVector pooling) { return text_vectors(model, x_ND, batch, pooling); };
  EXPECT_TRUE(at::allclose(pooled(TextVector::mean)[1], x_ND.narrow(0, 3, 2).mean(0)));
  EXPECT_TRUE(pooled(TextVector::cls)[1].equal(x_ND[3]));
  EXPECT_TRUE(pooled(TextVector::last)[0].equal(x_ND[2]));
  EXPECT_TRUE(pooled(TextVector::max)[0].equal(x_ND.narrow(0, 0, 3).amax(0)));
}

}  // namespace
}  // namespace tessera::train::contrastive_test
