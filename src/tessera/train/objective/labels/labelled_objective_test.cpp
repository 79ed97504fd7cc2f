// Learning from labels: losses against torch's and scikit-learn's numbers, runs of every kind, and
// what they begin from.
#include "tessera/train/objective/labels/labelled_objective.h"

#include <fmt/ranges.h>

#include "tessera/infer/encoders/classify.h"
#include "tessera/ops/ops_testing.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/objective/labels/label_loss.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::labelled_objective_test {
namespace {

namespace fs = std::filesystem;
using ops::gen;

Tensor longs(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong);
}

TEST(LabelLoss, Goldens) {
  const Tensor logits = 2 * gen({4, 3}, 0.8, 0.1);
  EXPECT_NEAR(class_loss(logits, longs({0, 2, 1, 1})).item<double>() / 4, 2.01116817, 5e-9);
  const Tensor weights = at::tensor({1.0, 2.0, 0.5}, at::kDouble);
  EXPECT_NEAR(class_loss(logits, longs({0, 2, 1, 1}), weights).item<double>() / (1 + 0.5 + 2 + 2),
              1.65150749, 5e-9);
  const Tensor several = ops::tensor({1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0}, {4, 3});
  EXPECT_NEAR(classes_loss(logits, several).item<double>() / 12, 1.16998678, 5e-9);
  EXPECT_NEAR(score_loss(gen({4}, 0.7, 0.2), ops::tensor({0.5, 1, 0, -1}, {4})).item<double>() / 4,
              1.04609537, 5e-9);
  const Tensor words = 2 * gen({7, 3}, 0.5, 0.4);
  EXPECT_NEAR(
      class_loss(words.index_select(0, longs({0, 1, 3, 6})), longs({0, 2, 1, 2})).item<double>() /
          4,
      1.84833348, 5e-9);
}

TEST(LabelLoss, OfAnAnswerIsTheMeanOfItsEnds) {
  const Tensor logits = 2 * gen({5, 2}, 0.6, 0.3);
  const auto nll = [&](int64_t end, int64_t at) {
    const Tensor z = logits.select(1, end);
    return (z.exp().sum().log() - z[at]).item<double>();
  };
  EXPECT_NEAR(answer_loss(logits, 1, 3).item<double>(), (nll(0, 1) + nll(1, 3)) / 2, 1e-12);
}

/// Examples whose label anybody can find: which letter stands in a word.
std::string lines_of(const std::function<Json(int)>& example, int n = 60) {
  std::string out;
  for (int i = 0; i < n; ++i) out += example(i).dump() + "\n";
  return out;
}

std::string word(int i) {
  return std::string(1 + static_cast<size_t>(i % 3), static_cast<char>('a' + i % 7));
}

Json text_example(int i) {
  const char* mark = i % 2 == 0 ? "x" : "y";
  return {{"text", word(i) + mark + word(i / 2)}, {"label", i % 2 == 0 ? "yes" : "no"}};
}

Json labelled_recipe(const std::string& file, const char* objective, const char* head) {
  Json json = json_of(R"({
    "spec": {"tessera": 1, "arch": "encoder", "vocab": 256, "d_model": 16,
             "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 2, "position": {"type": "rope"}}}],
             "ffn": {"type": "glu", "d_hidden": 32}},
    "data": {"valid_fraction": 0.2},
    "train": {"steps": 60, "batch": 8, "length": 32, "log_every": 1},
    "optimizer": {"lr": 0.02}, "schedule": {"type": "constant"}})");
  json["data"]["train"] = {file};
  json["objective"] = json_of(objective);
  json["spec"]["heads"] = json_of(head);
  return json;
}

constexpr const char* kTwoClasses = R"({"type": "classification", "labels": ["no", "yes"]})";
constexpr const char* kTwoHeads =
    R"([{"type": "classifier", "n_labels": 2}, {"type": "pooler", "of": "mean"}])";

TrainResult run(const Json& json, const fs::path& folder, const TrainOptions& options = {}) {
  return train(read_recipe(json, ""), folder, options);
}

TEST(LabelledObjective, ClassesOfTextsAreLearnedAndScored) {
  const TemporaryFolder folder;
  const Json json =
      labelled_recipe(folder.write("a.jsonl", lines_of(text_example)), kTwoClasses, kTwoHeads);
  std::vector<std::string> said;
  const TrainResult result = run(
      json, folder / "run", {.on_start = [&](const std::string& line) { said.push_back(line); }});
  ASSERT_TRUE(result.last && result.last->accuracy);
  EXPECT_EQ(*result.last->accuracy, 1);
  EXPECT_EQ(result.last->scores.at("f1"), 1);
  EXPECT_NEAR(result.last->scores.at("matthews"), 1, 1e-12);
  EXPECT_EQ(said.at(0).substr(0, 19), "train: 48 examples ");
  // the names of the classes are part of the model
  const auto loaded = infer::load_model(result.checkpoint);
  EXPECT_EQ(infer::class_names(loaded.model.spec()), (std::vector<std::string>{"no", "yes"}));
  const auto judged = infer::classify_texts(loaded, {{"aaxb"}, {"gyg"}}, {});
  EXPECT_EQ(judged[0].best, 1u);
  EXPECT_EQ(judged[1].best, 0u);
  EXPECT_NEAR(judged[0].probabilities[0] + judged[0].probabilities[1], 1, 1e-12);
}

TEST(LabelledObjective, GoesOnBitForBit) {
  const TemporaryFolder folder;
  Json json =
      labelled_recipe(folder.write("a.jsonl", lines_of(text_example)), kTwoClasses, kTwoHeads);
  json["train"]["steps"] = 20;
  json["train"]["accumulate"] = 2;
  json["spec"]["embed"] = {{"type", "token"}, {"dropout", 0.1}};
  run(json, folder / "whole");
  CancelToken cancel;
  const auto stop = [&](const LogLine& line, int64_t) {
    if (line.step == 11) cancel.request(15);
  };
  expect_error(ErrorKind::cancelled, "",
               [&] { run(json, folder / "cut", {.cancel = &cancel, .on_step = stop}); });
  run(json, folder / "cut", {.resume = true});
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(read_text_file(checkpoint_folder(folder / "whole", 20) / file) ==
                read_text_file(checkpoint_folder(folder / "cut", 20) / file))
        << file;
  // other labels are other data
  std::string other = read_text_file(folder / "a.jsonl");
  other.replace(other.find("yes"), 3, "no");
  folder.write("a.jsonl", other);
  json["train"]["steps"] = 21;
  expect_error(ErrorKind::spec, "data.train", [&] { run(json, folder / "cut", {.resume = true}); });
}

/// The loss and the gradients of one batch, or of its samples in passes of their own.
TEST(LabelledObjective, ATextAloneCountsAsItDoesAmongOthers) {
  const TemporaryFolder folder;
  for (const char* weights : {"[]", "[0.5, 2]"}) {
    Json json =
        labelled_recipe(folder.write("a.jsonl", lines_of(text_example)), kTwoClasses, kTwoHeads);
    json["objective"]["class_weights"] = json_of(weights);
    const Recipe recipe = read_recipe(json, "");
    const auto objective = open_objective(recipe, folder / "cache");
    const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 3));
    std::vector<int64_t> begun;
    const auto gradients = [&](int64_t at_once) {
      std::vector<PackedBatch> passes;
      Denominators whole;
      for (int64_t first = 0; first < 6; first += at_once) {
        passes.push_back(objective->source().train(first, at_once, begun));
        whole += objective->denominators(passes.back());
      }
      double loss = 0;
      for (const auto& [decl, weight] : model.weights().all())
        Tensor(weight->dense_tensor()).mutable_grad() = Tensor();
      for (const PackedBatch& packed : passes)
        loss +=
            objective->forward_backward(model, {packed, batch_of(packed), {}, whole}).at("loss") /
            whole.of("loss");
      std::map<std::string, Tensor> out{{"loss", at::tensor({loss}, at::kDouble)}};
      for (const auto& [decl, weight] : model.weights().all())
        out[decl.name] = weight->dense_tensor().grad().to(at::kDouble).clone();
      return out;
    };
    const auto together = gradients(6), apart = gradients(1);
    for (const auto& [name, value] : together)
      EXPECT_TRUE(at::allclose(value, apart.at(name), 1e-4, 1e-7)) << name;
  }
}

TEST(LabelledObjective, WeightsChangeWhatAClassCounts) {
  const TemporaryFolder folder;
  Json json =
      labelled_recipe(folder.write("a.jsonl", lines_of(text_example)), kTwoClasses, kTwoHeads);
  json["objective"]["class_weights"] = {1, 3};
  const auto objective = open_objective(read_recipe(json, ""), folder / "cache");
  PackedBatch packed;
  packed.labels = {{0}, {1}, {1}};
  EXPECT_EQ(objective->denominators(packed).of("loss"), 7);
}

TEST(LabelledObjective, ADecoderJudgesByItsLastToken) {
  const TemporaryFolder folder;
  Json json = labelled_recipe(
      folder.write("a.jsonl", lines_of(text_example)), kTwoClasses,
      R"([{"type": "classifier", "n_labels": 2}, {"type": "pooler", "of": "last"}])");
  json["spec"]["arch"] = "decoder";
  EXPECT_EQ(*run(json, folder / "run").last->accuracy, 1);
}

TEST(LabelledObjective, PairsHaveTypes) {
  const TemporaryFolder folder;
  Json json = labelled_recipe(folder.write("a.jsonl", lines_of([](int i) {
                                             return Json{{"text", i % 2 == 0 ? "x" : "y"},
                                                         {"text_b", i / 2 % 2 == 0 ? "x" : "y"},
                                                         {"label", i / 2 % 2}};
                                           })),
                              R"({"type": "classification"})", kTwoHeads);
  json["spec"]["embed"] = {{"type", "token"}, {"n_types", 2}};
  const Recipe recipe = read_recipe(json, "");
  const auto objective = open_objective(recipe, folder / "cache");
  std::vector<int64_t> begun;
  EXPECT_EQ(objective->source().train(0, 1, begun).types, (std::vector<int64_t>{0, 0, 1}));
  EXPECT_EQ(*run(json, folder / "run").last->accuracy, 1);
}

Json two_towers(const std::string& file) {
  return labelled_recipe(
      file, R"({"type": "classification", "labels": ["other", "same"]})",
      R"([{"type": "classifier", "n_labels": 2, "labels": ["other", "same"], "documents": 2, "act": "relu"},
          {"type": "pooler", "of": "mean", "dense": false, "act": "identity"}])");
}

std::string pairs_of_letters() {
  return lines_of(
      [](int i) {
        const int a = i % 3, b = i / 3 % 3;
        return Json{{"text", word(i) + std::string(2, static_cast<char>('x' + a))},
                    {"text_b", std::string(2, static_cast<char>('x' + b)) + word(i / 2)},
                    {"label", a == b ? "same" : "other"}};
      },
      90);
}

TEST(LabelledObjective, TwoTowersCompareDocumentsThatAreComputedAlone) {
  const TemporaryFolder folder;
  const std::string file = folder.write("a.jsonl", pairs_of_letters());
  Json json = two_towers(file);
  json["train"]["steps"] = 500;
  json["optimizer"]["lr"] = 0.005;
  const TrainResult result = run(json, folder / "run");
  EXPECT_GT(*result.last->accuracy, 0.9);
  const infer::LoadedModel loaded = infer::load_model(result.checkpoint);
  ASSERT_EQ(infer::classification_task_of(loaded), infer::ClassificationTask::texts);
  const auto judged = infer::classify_texts(loaded, {{"aaxx", "xxbb"}, {"aaxx", "zzbb"}}, {});
  EXPECT_EQ(judged[0].best, 1u);
  EXPECT_EQ(judged[1].best, 0u);
  expect_error(ErrorKind::input, "expected a pair of texts",
               [&] { infer::classify_texts(loaded, {{"aaxx"}}, {}); });
  // logits by the formula, of vectors of documents in batches of their own
  const Recipe recipe = read_recipe(json, "");
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 3));
  const auto objective = open_objective(recipe, folder / "cache");
  std::vector<int64_t> begun;
  const PackedBatch packed = objective->source().train(0, 2, begun);
  ASSERT_EQ(packed.pieces.size(), 4u);
  EXPECT_EQ(packed.pieces[1].row, 0);
  EXPECT_EQ(packed.labels.size(), 2u);
  const at::NoGradGuard no_gradients;
  const nn::Batch batch = batch_of(packed);
  const Tensor got = model.logits(model.pooled(model.hidden(batch), batch));
  const auto weight = [&](const std::string& name) {
    for (const auto& [decl, one] : model.weights().all())
      if (decl.name == name) return one->dense_tensor().to(at::kDouble);
    throw std::runtime_error("no " + name);
  };
  for (int64_t pair = 0; pair < 2; ++pair) {
    std::vector<Tensor> vectors;
    for (const size_t piece : {static_cast<size_t>(2 * pair), static_cast<size_t>(2 * pair + 1)}) {
      const auto begin = packed.ids.begin() + packed.pieces[piece].begin;
      const nn::Batch alone = nn::Batch::of(
          std::vector<std::vector<int64_t>>{{begin, begin + packed.pieces[piece].length}});
      vectors.push_back(model.pooled(model.hidden(alone), alone)[0].to(at::kDouble));
    }
    const Tensor &u = vectors[0], &v = vectors[1];
    const Tensor x = (weight("head.pair.weight").matmul(at::cat({u, v, u * v, u - v})) +
                      weight("head.pair.bias"))
                         .relu();
    const Tensor y = (weight("head.pair_2.weight").matmul(x) + weight("head.pair_2.bias")).relu();
    const Tensor want = weight("head.weight").matmul(y) + weight("head.bias");
    EXPECT_TRUE(at::allclose(got[pair].to(at::kDouble), want, 1e-4, 1e-5));
  }
}

TEST(LabelledObjective, TwoTowersNeedPairs) {
  const TemporaryFolder folder;
  const std::string message = test::error_of([&] {
    run(two_towers(
            folder.write("a.jsonl", lines_of([](int i) {
                           return Json{{"text", word(i)}, {"label", i % 2 == 0 ? "same" : "other"}};
                         }))),
        folder / "run");
  });
  EXPECT_NE(message.find("no second text, and the model compares two documents"), std::string::npos)
      << message;
}

TEST(LabelledObjective, SeveralClassesOrNone) {
  const TemporaryFolder folder;
  Json json = labelled_recipe(
      folder.write("a.jsonl", lines_of([](int i) {
                     Json labels = Json::array();
                     std::string text = word(i);
                     if (i % 2 == 0) labels.push_back("x"), text += "x";
                     if (i % 3 == 0) labels.push_back("y"), text += "y";
                     return Json{{"text", text}, {"label", labels}};
                   })),
      R"({"type": "classification", "labels": ["x", "y"], "multi_label": true})", kTwoHeads);
  json["train"]["steps"] = 400;
  const TrainResult result = run(json, folder / "run");
  EXPECT_EQ(*result.last->accuracy, 1);
  EXPECT_EQ(result.last->scores.at("micro_f1"), 1);
}

TEST(LabelledObjective, Numbers) {
  const TemporaryFolder folder;
  Json json = labelled_recipe(
      folder.write("a.jsonl", lines_of([](int i) {
                     const int n = i % 5;
                     return Json{{"text", std::string(static_cast<size_t>(n), 'x') +
                                              std::string(static_cast<size_t>(5 - n), 'z')},
                                 {"score", n}};
                   })),
      R"({"type": "regression"})",
      R"([{"type": "classifier", "n_labels": 1}, {"type": "pooler", "of": "mean", "dense": false, "act": "identity"}])");
  const TrainResult result = run(json, folder / "run");
  EXPECT_FALSE(result.last->accuracy);
  EXPECT_GT(result.last->scores.at("pearson"), 0.95);
  EXPECT_GT(result.last->scores.at("spearman"), 0.9);
}

TEST(LabelledObjective, ClassesOfWords) {
  const TemporaryFolder folder;
  const Json json = labelled_recipe(
      folder.write("a.jsonl", lines_of([](int i) {
                     return Json{{"words", {word(i), "X" + word(i), "Y", word(i + 1)}},
                                 {"labels", {"O", "B-N", "I-N", "O"}}};
                   })),
      R"({"type": "token_classification", "labels": ["O", "B-N", "I-N"]})",
      R"([{"type": "classifier", "n_labels": 3, "of": "tokens"}])");
  const TrainResult result = run(json, folder / "run");
  EXPECT_EQ(*result.last->accuracy, 1);
  EXPECT_EQ(result.last->scores.at("entity_f1"), 1);
  const auto loaded = infer::load_model(result.checkpoint);
  const auto words = infer::classify_words(loaded, {"a", "Xa", "Y", "b"}, {});
  EXPECT_EQ(words[1].best, 1u);
  EXPECT_EQ(words[2].best, 2u);
}

TEST(LabelledObjective, AnswersInTexts) {
  const TemporaryFolder folder;
  Json json = labelled_recipe(
      folder.write("a.jsonl", lines_of([](int i) {
                     const std::string answer = std::to_string(10 + i % 7);
                     return Json{
                         {"context", word(i) + word(i + 1) + " " + answer + " " + word(i + 2)},
                         {"question", "n"},
                         {"answers", {answer}}};
                   })),
      R"({"type": "question_answering", "stride": 4})", R"([{"type": "span"}])");
  json["train"]["steps"] = 100;
  const TrainResult result = run(json, folder / "run");
  EXPECT_FALSE(result.last->accuracy);
  EXPECT_GT(result.last->scores.at("exact_match"), 0.9);
  EXPECT_GE(result.last->scores.at("f1"), result.last->scores.at("exact_match"));
  const auto loaded = infer::load_model(result.checkpoint);
  const infer::SpanAnswer answer =
      infer::find_answer(loaded, "n", "abc 12 de", {.max_tokens = 32, .stride = 4});
  EXPECT_EQ(std::string("abc 12 de").substr(answer.begin, answer.end - answer.begin), "12");
}

/// A model without a head for labels, as a run leaves one.
std::string masked_model(const TemporaryFolder& folder) {
  Json json =
      labelled_recipe(folder.write("text.txt", counting_text(3000)),
                      R"({"type": "masked_lm", "mask_id": 256})", R"([{"type": "masked_lm"}])");
  json["spec"]["vocab"] = 257;
  json["train"]["steps"] = 2;
  run(json, folder / "base");
  return (folder / "base").string();
}

TEST(LabelledObjective, AModelGetsTheHeadThatItsLabelsNeed) {
  const TemporaryFolder folder;
  Json json =
      labelled_recipe(folder.write("a.jsonl", lines_of(text_example)), kTwoClasses, kTwoHeads);
  json.erase("spec");
  json["train"]["steps"] = 200;
  json["init"] = {{"from", masked_model(folder)}};
  const Recipe recipe = read_recipe(json, "");
  EXPECT_EQ(recipe.spec.head.type(), "classifier");
  EXPECT_EQ(recipe.spec.pooler.type(), "pooler");
  ASSERT_FALSE(recipe.notes.empty());
  EXPECT_TRUE(recipe.notes[0].starts_with(
      "head \"masked_lm\" replaced by a new one: 2 classes; pooling: {"))
      << recipe.notes[0];
  EXPECT_EQ(resolve(read_recipe(resolve(recipe), "")), resolve(recipe));
  std::vector<std::string> said;
  const TrainResult result = train(
      recipe, folder / "run", {.on_start = [&](const std::string& line) { said.push_back(line); }});
  EXPECT_EQ(*result.last->accuracy, 1);
  const std::string all = fmt::format("{}", fmt::join(said, "\n"));
  EXPECT_NE(all.find("newly initialized (4): \"head.weight\", \"head.bias\""), std::string::npos)
      << all;
  EXPECT_NE(all.find("): \"head.bias\", \"head.transform.weight\""), std::string::npos) << all;
}

TEST(LabelledObjective, AnAdapterBringsItsHead) {
  const TemporaryFolder folder;
  Json json =
      labelled_recipe(folder.write("a.jsonl", lines_of(text_example)), kTwoClasses, kTwoHeads);
  json.erase("spec");
  json["train"]["steps"] = 300;
  json["objective"]["pool"] = "mean";
  json["init"] = {{"from", masked_model(folder)}};
  json["adapter"] = {{"rank", 4}, {"alpha", 8}};
  const TrainResult result = run(json, folder / "run");
  EXPECT_EQ(*result.last->accuracy, 1);
  const auto loaded = infer::load_model(folder / "base/latest", {}, folder / "run");
  EXPECT_EQ(infer::classification_task_of(loaded), infer::ClassificationTask::texts);
  const auto judged = infer::classify_texts(loaded, {{"aaxb"}, {"gyg"}}, {});
  EXPECT_EQ(judged[0].best, 1u);
  EXPECT_EQ(judged[1].best, 0u);
}

TEST(LabelledObjective, RefusesBeforeTheFirstStep) {
  const TemporaryFolder folder;
  const std::string file = folder.write("a.jsonl", lines_of(text_example));
  const auto refusal = [&](const char* objective, const char* heads, const char* patch = "{}") {
    Json json = labelled_recipe(file, objective, heads);
    json.merge_patch(json_of(patch));
    std::string message = test::error_of([&] { run(json, folder / "run"); });
    EXPECT_TRUE(checkpoint_steps(folder / "run").empty());
    return message;
  };
  const auto has = [](const std::string& message, std::string_view part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has(refusal(kTwoClasses, R"([{"type": "span"}])"), "[spec.head] found \"span\"");
  has(refusal(R"({"type": "classification", "labels": ["a", "b", "c"]})", kTwoHeads),
      "[objective.labels] 3 names; the head has 2 classes");
  has(refusal(R"({"type": "classification", "labels": ["no", "maybe"]})", kTwoHeads),
      ": class \"yes\" is unknown; expected one of \"no\", \"maybe\"");
  has(refusal(R"({"type": "classification"})", kTwoHeads),
      "is unknown; expected one of \"0\", \"1\"");
  has(refusal(R"({"type": "classification", "class_weights": [1]})", kTwoHeads),
      "[objective.class_weights]");
  has(refusal(R"({"type": "regression"})", kTwoHeads), "[spec.head.n_labels]");
  has(refusal(R"({"type": "regression", "labels": []})", kTwoHeads), "labels");
  has(refusal(kTwoClasses, kTwoHeads, R"({"train": {"z_loss": 0.1}})"), "[train.z_loss]");
  has(refusal(kTwoClasses, kTwoHeads, R"({"train": {"curriculum": {"from": 2, "steps": 5}}})"),
      "[train.curriculum]");
  has(refusal(kTwoClasses, kTwoHeads, R"({"data": {"text_key": "sentence"}})"),
      "line 1: no \"sentence\"");
  has(refusal(kTwoClasses, kTwoHeads, R"({"data": {"source_key": "a"}})"), "source_key");
  has(refusal(R"({"type": "question_answering", "stride": 32})", R"([{"type": "span"}])"),
      "[objective.stride]");
  // names in another order than the model's would exchange its classes
  has(refusal(kTwoClasses,
              R"([{"type": "classifier", "n_labels": 2, "labels": ["yes", "no"]}, "pooler"])"),
      "[objective.labels] another order than the model's");
}

}  // namespace
}  // namespace tessera::train::labelled_objective_test
