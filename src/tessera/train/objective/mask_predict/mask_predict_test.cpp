// Training of pairs whose decoder sees texts whole.
#include "tessera/train/objective/mask_predict/mask_predict_objective.h"

#include <numeric>

#include "tessera/infer/engine/generate.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/train/data/sample_view.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/objective/distillation/distillation.h"
#include "tessera/train/objective/loss.h"
#include "tessera/train/objective/mask_predict/length_loss.h"
#include "tessera/train/objective/objective.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::mask_predict_test {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

/// Words of one letter; the text says it half as often, as a capital.
std::string pair_lines(int lines) {
  std::string out;
  for (int i = 0; i < lines; ++i) {
    const auto n = static_cast<size_t>(1 + (i * 5 + i / 3) % 4);
    const char letter = static_cast<char>('a' + (i * 7 + i / 5) % 4);
    out += Json{{"in", std::string(2 * n, letter)},
                {"out", std::string(n, static_cast<char>(letter - 'a' + 'A'))}}
               .dump() +
           "\n";
  }
  return out;
}

Json masked_recipe(const std::string& file) {
  Json json = tiny_recipe(file);
  json["spec"] =
      json_of(R"({"tessera": 1, "arch": "encoder_decoder", "vocab": 257, "d_model": 16, "mask": 256,
    "embed": {"type": "token", "position": {"type": "learned", "n_positions": 64}},
    "mixer": {"type": "attention", "n_heads": 2, "position": "rope"}, "ffn": {"type": "glu", "d_hidden": 32},
    "cross": {"type": "cross_attention", "n_heads": 2},
    "stacks": {"encoder": {"layers": [{}], "heads": [{"type": "classifier", "n_labels": 8},
                                                     {"type": "pooler", "of": "mean"}]},
               "decoder": {"layers": [{}]}}})");
  json["data"]["format"] = "jsonl";
  json["data"]["source_key"] = "in";
  json["data"]["text_key"] = "out";
  json["objective"] = {{"type", "mask_predict"}};
  return json;
}

TEST(MaskPredict, MasksAUniformNumberOfTokens) {
  PackedBatch pairs;  // as they are packed for a decoder that writes from left to right
  pairs.ids = {9, 1, 2, 3, 9, 5};
  pairs.targets = {1, 2, 3, 7, 5, 7};
  pairs.pieces = {{0, 0, 4}, {1, 4, 2}};
  pairs.sources = {{50}, {51, 52}};
  std::vector<int> counts(5);
  std::map<std::string, int> seen;
  for (uint64_t key = 0; key < 4000; ++key) {
    const PackedBatch whole =
        mask_texts(pairs, 99, std::nullopt, {RandomKey(key), RandomKey(key + 1)});
    ASSERT_EQ(whole.pieces.size(), 2u);
    ASSERT_EQ(whole.pieces[1].begin, 4);
    EXPECT_EQ(whole.sources, pairs.sources);
    int masked = 0;
    std::string which;
    for (size_t i = 0; i < 6; ++i) {
      const bool hidden = whole.ids[i] == 99;
      EXPECT_EQ(hidden ? whole.targets[i] : whole.ids[i], pairs.targets[i]);
      EXPECT_EQ(whole.targets[i] >= 0, hidden);
      if (i < 4) masked += hidden, which += hidden ? 'x' : '.';
    }
    ++counts[static_cast<size_t>(masked)];
    ++seen[which];
  }
  EXPECT_EQ(counts[0], 0);
  // 1000 each, within five standard deviations
  for (int n = 1; n <= 4; ++n) EXPECT_NEAR(counts[static_cast<size_t>(n)], 1000, 137) << n;
  for (const char* two : {"xx..", "x.x.", "x..x", ".xx.", ".x.x", "..xx"})
    EXPECT_NEAR(seen[two], 1000 / 6, 64) << two;
  // a token that ends texts is none of theirs
  const PackedBatch cut = mask_texts(pairs, 99, 7, {RandomKey(1), RandomKey(2)});
  EXPECT_EQ(cut.pieces[0].length, 3);
  EXPECT_EQ(cut.pieces[1].begin, 3);
  EXPECT_EQ(cut.ids.size(), 4u);
}

TEST(MaskPredict, MasksAreAFunctionOfTheSampleAndInWhatIsHeldOutOfNothingElse) {
  const TemporaryFolder folder;
  Json json = masked_recipe(folder.write("pairs.jsonl", pair_lines(200)));
  const auto open = [&](int64_t seed) {
    json["train"]["seed"] = seed;
    return open_objective(read_recipe(json, ""), folder / "cache");
  };
  const auto one = open(1), other = open(2);
  EXPECT_EQ(one->name(), "mask_predict");
  std::vector<int64_t> begun;
  const PackedBatch all = one->source().train(8, 4, begun),
                    last = one->source().train(11, 1, begun);
  EXPECT_EQ(last.first_sample, 11);
  EXPECT_EQ(Ids(all.ids.end() - std::ssize(last.ids), all.ids.end()), last.ids);
  const Denominators whole = one->denominators(all);
  EXPECT_EQ(whole.of("loss"), all.n_targets);
  EXPECT_EQ(whole.of("length"), 4);
  EXPECT_EQ(one->source().valid({0, 5}).ids, other->source().valid({0, 5}).ids);
  EXPECT_NE(one->source().train(8, 4, begun).ids, other->source().train(8, 4, begun).ids);
  // what a run will see
  const std::vector<std::string> lines = lines_of(all, 0, nullptr, false);
  EXPECT_NE(std::find_if(lines.begin(), lines.end(),
                         [](const std::string& line) {
                           return line.find("encoder reads") != std::string::npos;
                         }),
            lines.end());
  EXPECT_NE(
      std::find_if(lines.begin(), lines.end(),
                   [](const std::string& line) { return line.find(" 256") != std::string::npos; }),
      lines.end());
}

TEST(MaskPredict, LearnsAndGoesOnWithTheSameBits) {
  const TemporaryFolder folder;
  Json json = masked_recipe(folder.write("pairs.jsonl", pair_lines(400)));
  json["train"]["steps"] = 150;
  json["train"]["accumulate"] = 2;
  json["train"]["eval_every"] = 50;
  json["checkpoint"]["every"] = 25;
  const Recipe recipe = read_recipe(json, "");
  const TrainResult whole = train(recipe, folder / "whole", {});
  ASSERT_TRUE(whole.last && whole.last->valid_loss);
  // four letters: ln 4 is what their number alone gives, of a length too
  EXPECT_LT(*whole.last->valid_loss, 0.7);
  EXPECT_LT(whole.last->losses.at("valid_length"), 0.7);
  EXPECT_GT(whole.last->scores.at("length_accuracy"), 0.5);
  EXPECT_TRUE(whole.last->losses.contains("length"));

  CancelToken cancel;
  const auto stop = [&](const LogLine& line, int64_t) {
    if (line.step == 31) cancel.request(15);
  };
  expect_error(ErrorKind::cancelled, "",
               [&] { train(recipe, folder / "cut", {.cancel = &cancel, .on_step = stop}); });
  const TrainResult resumed = train(recipe, folder / "cut", {.resume = true});
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(read_text_file(checkpoint_folder(folder / "whole", 150) / file) ==
                read_text_file(checkpoint_folder(folder / "cut", 150) / file))
        << file;
  EXPECT_EQ(*whole.last->valid_loss, *resumed.last->valid_loss);

  // what is saved answers
  const infer::LoadedModel loaded = infer::load_model((folder / "whole" / "latest").string());
  EXPECT_EQ(loaded.model.spec().mask, 256);
  const infer::Generations said =
      infer::generate(loaded.model, nullptr, {{'b', 'b', 'b', 'b'}, {'d', 'd'}}, {});
  EXPECT_EQ(said.rows[0].token_ids.front(), 'B');
  EXPECT_EQ(said.rows[1].token_ids.front(), 'D');
}

TEST(MaskPredict, GradientsAreThoseOfItsLosses) {
  const TemporaryFolder folder;
  Json json = masked_recipe(folder.write("pairs.jsonl", pair_lines(60)));
  json["objective"]["length_weight"] = 0.3;
  const Recipe recipe = read_recipe(json, "");
  const auto objective = open_objective(recipe, folder / "cache");
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 3, at::kDouble));
  std::vector<int64_t> begun;
  const PackedBatch packed = objective->source().train(0, 5, begun);
  const nn::Batch batch = batch_of(packed);
  const Denominators whole = objective->denominators(packed);
  model::ForwardOptions forward;
  forward.training = true;
  const LossSums sums = objective->forward_backward(model, {packed, batch, forward, whole});
  const auto loss = [&] {
    const at::NoGradGuard no_gradients;
    nn::Encoded encoded;
    Tensor logits = model.logits(hidden_of(model, packed, batch, {}, &encoded));
    const double nll = cross_entropy_(logits, targets_of(packed), {}).nll,
                 lengths = length_nll(model.target_lengths(encoded), lengths_of(packed))
                               .sum()
                               .item<double>();
    EXPECT_NEAR(lengths, sums.at("length"), 1e-2);
    return nll / whole.of("loss") + 0.3 * lengths / 5;
  };
  EXPECT_NEAR(loss(), sums.at("loss") / whole.of("loss") + 0.3 * sums.at("length") / 5, 1e-9);
  int64_t checked = 0;
  for (const auto& [decl, weight] : model.weights().all()) {
    const Tensor w = weight->dense_tensor();
    ASSERT_TRUE(w.grad().defined()) << decl.name;
    // the number with the largest gradient of each
    const int64_t at = w.grad().abs().argmax().item<int64_t>();
    auto* value = w.data_ptr<double>() + at;
    const double own = *value, step = 1e-5;
    *value = own + step;
    const double above = loss();
    *value = own - step;
    const double below = loss();
    *value = own;
    EXPECT_NEAR(w.grad().flatten()[at].item<double>(), (above - below) / (2 * step), 1e-6)
        << decl.name;
    ++checked;
  }
  EXPECT_GT(checked, 20);
}

TEST(MaskPredict, APairAloneIsTheSameAmongOthers) {
  const TemporaryFolder folder;
  const Recipe recipe = read_recipe(masked_recipe(folder.write("pairs.jsonl", pair_lines(60))), "");
  const auto objective = open_objective(recipe, folder / "cache");
  const model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 3, at::kDouble));
  std::vector<int64_t> begun;
  std::vector<Tensor> hidden, lengths;
  for (int64_t i = 0; i < 6; ++i) {
    const PackedBatch one = objective->source().train(i, 1, begun);
    nn::Encoded encoded;
    hidden.push_back(hidden_of(model, one, batch_of(one), {}, &encoded));
    lengths.push_back(model.target_lengths(encoded));
  }
  const PackedBatch all = objective->source().train(0, 6, begun);
  nn::Encoded encoded;
  EXPECT_TRUE(
      at::allclose(hidden_of(model, all, batch_of(all), {}, &encoded), at::cat(hidden), 0, 1e-10));
  EXPECT_TRUE(at::allclose(model.target_lengths(encoded), at::cat(lengths), 0, 1e-10));
}

TEST(MaskPredict, ATeacherWritesFromLeftToRight) {
  // of a text that the student sees with masks the teacher reads what stands before every token
  PackedBatch packed;
  packed.ids = {99, 11, 99, 99};
  packed.targets = {10, -1, 12, 20};
  packed.pieces = {{0, 0, 3}, {1, 3, 1}};
  EXPECT_EQ(answer_batch(packed, 1).ids, (Ids{1, 10, 11, 1}));

  const TemporaryFolder folder;
  const std::string file = folder.write("pairs.jsonl", pair_lines(120));
  Json teacher = masked_recipe(file);
  teacher.erase("objective");
  teacher["spec"].erase("mask");
  teacher["spec"]["stacks"]["encoder"].erase("heads");
  teacher["train"]["steps"] = 60;
  train(read_recipe(teacher, ""), folder / "teacher", {});
  Json json = masked_recipe(file);
  json["objective"] = {{"type", "distillation"},
                       {"teacher", (folder / "teacher").string()},
                       {"inner", {{"type", "mask_predict"}}},
                       {"alpha", 1},
                       {"terms", {{{"of", "logits"}}}}};
  json["train"]["steps"] = 60;
  json["train"]["eval_every"] = 60;
  const Recipe recipe = read_recipe(json, "");
  // what it is measured on are the masked tokens, of which the teacher alone has told it
  const TrainResult taught = train(recipe, folder / "student", {});
  ASSERT_TRUE(taught.last && taught.last->valid_loss);
  EXPECT_LT(*taught.last->valid_loss, 1.4);
  EXPECT_TRUE(taught.last->losses.contains("logits"));
  // what sees targets teaches nobody who foretells them
  json = teacher;
  json["objective"] = {{"type", "distillation"},
                       {"teacher", (folder / "student").string()},
                       {"terms", {{{"of", "logits"}}}}};
  expect_error(ErrorKind::spec, "expected a teacher that writes from left to right",
               [&] { read_recipe(json, ""); });
}

TEST(MaskPredict, RefusesWhatDoesNotFit) {
  const TemporaryFolder folder;
  const std::string file = folder.write("pairs.jsonl", pair_lines(60));
  const auto refused = [&](const std::string& what, const std::function<void(Json&)>& change) {
    Json json = masked_recipe(file);
    change(json);
    expect_error(ErrorKind::spec, what, [&] { read_recipe(json, ""); });
  };
  refused("expected an \"encoder_decoder\" with \"mask\"", [](Json& json) {
    json["spec"].erase("mask");
    json["spec"]["stacks"]["encoder"].erase("heads");
  });
  refused("learns from pairs", [](Json& json) { json["data"].erase("source_key"); });
  refused("expected \"mask_predict\"", [](Json& json) { json.erase("objective"); });
  refused("whole length", [](Json& json) {
    json["train"]["curriculum"] = {{"from", 4}, {"steps", 3}};
  });
  // a text that is longer than any that the model can make
  Json json = masked_recipe(
      folder.write("long.jsonl", pair_lines(20) + R"({"in": "aa", "out": "AAAAAAAAA"})" + "\n"));
  json["data"]["valid_fraction"] = 0;
  expect_error(ErrorKind::input,
               "pair 21 of the train split: the text has 9 tokens; expected 1 to 8",
               [&] { train(read_recipe(json, ""), folder / "run", {}); });
  EXPECT_FALSE(fs::exists(folder / "run"));
}

}  // namespace
}  // namespace tessera::train::mask_predict_test
