// Training by pairs of answers, and what the model that a run begins from says of them.
#include "tessera/train/objective/preference/preference.h"

#include "tessera/format/safetensors.h"
#include "tessera/infer/loading/adapter.h"
#include "tessera/train/gguf_testing.h"
#include "tessera/train/loop/adapter.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::preference_test {
namespace {

namespace fs = std::filesystem;

/// The next bytes of a text against the same ones in another order.
std::string pairs_of(const std::string& text, size_t count, size_t bytes) {
  std::string lines;
  for (size_t i = 0; i < count; ++i) {
    const std::string prompt = text.substr(i * 11, bytes),
                      next = text.substr(i * 11 + bytes, bytes);
    std::string mixed = next;
    for (size_t k = 0; k < bytes; ++k) mixed[k] = next[(k * 7 + 3) % bytes];
    lines += Json{{"prompt", prompt}, {"chosen", next}, {"rejected", mixed}}.dump() + "\n";
  }
  return lines;
}

struct Setting {
  TemporaryFolder folder;
  Json json = tiny_recipe("");

  explicit Setting(size_t count = 60, size_t bytes = 8) {
    const std::string file =
        folder.write("pairs.jsonl", pairs_of(counting_text(11 * count + 64), count, bytes));
    json["data"] = {{"train", {file}}, {"format", "jsonl"}, {"valid_fraction", 0.2}};
    json["objective"] = {{"type", "preference"}};
  }
  Recipe recipe(const std::vector<std::string>& changes = {}) const {
    return read_recipe(json, "", changes);
  }
  fs::path run(const std::string& name) const { return folder / name; }
};

/// The gradients of every parameter together, after learn() over micro-batches of so many samples.
Tensor gradients(const Recipe& recipe,
                 const Objective& objective,
                 const model::Model& model,
                 int64_t micro,
                 LossSums* sums = nullptr) {
  std::vector<PackedBatch> parts;
  Denominators whole;
  std::vector<int64_t> begun;
  for (int64_t first = 0; first < recipe.train.batch; first += micro) {
    parts.push_back(objective.source().train(first, micro, begun));
    whole += objective.denominators(parts.back());
  }
  for (const auto& [decl, weight] : model.weights().all())
    Tensor(weight->dense_tensor()).mutable_grad() = Tensor();
  for (const PackedBatch& part : parts)
    for (const auto& [name, sum] :
         objective.forward_backward(model, {part, batch_of(part), {}, whole}))
      if (sums != nullptr) (*sums)[name] += sum;
  std::vector<Tensor> all;
  for (const auto& [decl, weight] : model.weights().all())
    all.push_back(weight->dense_tensor().grad().flatten());
  return at::cat(all);
}

/// A model that has moved away from the one that references are of.
model::Model moved(const Recipe& recipe) {
  const at::NoGradGuard none;
  model::Model model = start_model(recipe.model_plan());
  for (const auto& [decl, weight] : model.weights().all()) {
    Tensor values = weight->dense_tensor();
    values.add_(at::sin(at::arange(values.numel(), values.options())).view(values.sizes()), 0.05);
  }
  return model;
}

TEST(Preference, GradientsAreThoseOfTheFormulaAndNotOfTheCutsOfABatch) {
  const Setting s;
  for (const char* loss : {"dpo", "ipo", "orpo"}) {
    SCOPED_TRACE(loss);
    const Recipe recipe =
        s.recipe({fmt::format(R"(objective={{"type": "preference", "loss": "{}"}})", loss)});
    const auto objective = open_objective(recipe, s.folder / "cache");
    const model::Model model = moved(recipe), start = start_model(recipe.model_plan());
    LossSums sums;
    const Tensor got = gradients(recipe, *objective, model, 4, &sums),
                 in_parts = gradients(recipe, *objective, model, 1);

    // the formula of the header, by autograd of all logits
    std::vector<int64_t> begun;
    const PackedBatch packed = objective->source().train(0, 4, begun);
    const auto log_p = [&](const model::Model& of) {
      const Tensor logits =
          at::log_softmax(of.logits(of.hidden(batch_of(packed))).to(at::kDouble), -1);
      const Tensor targets = targets_of(packed);
      const Tensor of_tokens = at::where(
          targets >= 0, logits.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1), 0.0);
      std::vector<Tensor> out, tokens;
      for (const PackedDocument& piece : packed.pieces) {
        out.push_back(of_tokens.narrow(0, piece.begin, piece.length).sum());
        tokens.push_back((targets.narrow(0, piece.begin, piece.length) >= 0).sum());
      }
      return std::pair{at::stack(out).view({-1, 2}), at::stack(tokens).view({-1, 2})};
    };
    const auto [own, tokens] = log_p(model);
    Tensor pairs;
    if (std::string(loss) == "orpo") {
      const Tensor mean = own / tokens, odds = mean - at::log1p(-at::exp(mean));
      pairs = -mean.select(1, 0) - 0.1 * at::log_sigmoid(odds.select(1, 0) - odds.select(1, 1));
    } else {
      const Tensor ahead = own - log_p(start).first.detach(),
                   z = ahead.select(1, 0) - ahead.select(1, 1);
      pairs = std::string(loss) == "dpo" ? -at::log_sigmoid(0.1 * z) : (z - 5).square();
    }
    for (const auto& [decl, weight] : model.weights().all())
      Tensor(weight->dense_tensor()).mutable_grad() = Tensor();
    pairs.mean().backward();
    std::vector<Tensor> all;
    for (const auto& [decl, weight] : model.weights().all())
      all.push_back(weight->dense_tensor().grad().flatten());
    const Tensor want = at::cat(all);
    EXPECT_NEAR(sums.at("loss"), pairs.sum().item<double>(), 1e-4);
    EXPECT_LT((got - want).norm().item<double>(), 1e-4 * want.norm().item<double>());
    EXPECT_LT((in_parts - got).norm().item<double>(), 1e-5 * want.norm().item<double>());
  }
}

TEST(Preference, BeginsAtLnTwoAndTellsTextFromItsShuffles) {
  Setting s(200, 32);
  s.json["train"]["length"] = 64;
  std::vector<LogLine> lines;
  std::vector<std::string> said;
  train(s.recipe({"train.steps=60", "train.batch=8", "train.eval_every=20"}), s.run("a"),
        {.on_step = [&](const LogLine& line, int64_t) { lines.push_back(line); },
         .on_start = [&](const std::string& line) { said.push_back(line); }});
  ASSERT_EQ(lines.size(), 60u);
  EXPECT_NEAR(lines.front().loss, std::log(2.0), 1e-5);
  EXPECT_EQ(lines.front().tokens, 8 * 2 * 32);
  EXPECT_NEAR(lines.front().losses.at("margin"), 0, 1e-5);
  EXPECT_NEAR(lines.front().losses.at("log_p_chosen"), 32 * -std::log(256.0), 4);
  const LogLine& last = lines.back();
  ASSERT_TRUE(last.valid_loss && last.accuracy);
  EXPECT_GT(*last.accuracy, 0.95);
  EXPECT_LT(*last.valid_loss, 0.5);
  EXPECT_NEAR(last.scores.at("margin"),
              last.scores.at("reward_chosen") - last.scores.at("reward_rejected"), 1e-9);
  EXPECT_GT(last.losses.at("accuracy"), 0.8);
  ASSERT_FALSE(said.empty());
  EXPECT_TRUE(said.front().starts_with("reference model: log-probabilities of 200 of 200 pairs"))
      << said.front();
}

/// Cut at step 7 and gone on with; `begin` is gone by then.
void goes_on_bit_for_bit(const Setting& s, const fs::path& begin, const char* weights) {
  train(s.recipe(), s.run("whole"));
  CancelToken stop;
  expect_error(ErrorKind::cancelled, "", [&] {
    train(s.recipe(), s.run("cut"), {.cancel = &stop, .on_step = [&](const LogLine& line, int64_t) {
                                       if (line.step == 7) stop.request();
                                     }});
  });
  if (!begin.empty()) fs::remove_all(begin);
  const TrainResult result = train(s.recipe(), s.run("cut"), {.resume = true});
  EXPECT_EQ(result.step, 12);
  for (const char* file : {weights, "optimizer.safetensors"})
    EXPECT_TRUE(read_text_file(s.run("whole") / "step-12" / file) ==
                read_text_file(s.run("cut") / "step-12" / file))
        << file;
}

TEST(Preference, GoesOnBitForBit) {
  const Setting s;
  goes_on_bit_for_bit(s, {}, "model.safetensors");
  // the reference lies in the cache; without it it is computed again, from the same model
  const fs::path run = s.run("cut");
  fs::remove_all(run / "step-12");
  fs::remove_all(run / "latest");
  fs::remove_all(run / "cache");
  train(s.recipe(), run, {.resume = true});
  EXPECT_TRUE(read_text_file(run / "step-12/model.safetensors") ==
              read_text_file(s.run("whole") / "step-12/model.safetensors"));
}

TEST(Preference, AModelThatARunBeganFromMayBeGoneWhenItGoesOn) {
  Setting s;
  Json base = tiny_recipe(s.folder.write("text.txt", counting_text(3000)));
  train(read_recipe(base, ""), s.run("base"));
  s.json.erase("spec");
  s.json["init"] = {{"from", s.run("base").string()}};
  const Recipe recipe = s.recipe();
  train(recipe, s.run("whole"));
  CancelToken stop;
  expect_error(ErrorKind::cancelled, "", [&] {
    train(recipe, s.run("cut"), {.cancel = &stop, .on_step = [&](const LogLine& line, int64_t) {
                                   if (line.step == 7) stop.request();
                                 }});
  });
  fs::remove_all(s.run("base"));
  train(recipe, s.run("cut"), {.resume = true});
  EXPECT_TRUE(read_text_file(s.run("whole") / "step-12/model.safetensors") ==
              read_text_file(s.run("cut") / "step-12/model.safetensors"));
}

TEST(Preference, TheReferenceOfAnAdapterIsTheModelWithoutIt) {
  Setting s;
  const fs::path file = gguf_file(s.folder, DType::q8_0);
  s.json.erase("spec");
  s.json["init"] = {{"from", file.string()}};
  s.json["data"]["tokenizer"] = "bytes";
  s.json["adapter"] = {{"rank", 2}, {"dropout", 0.3}};
  const int64_t vocab =
      start_model(read_recipe({{"init", s.json["init"]},
                               {"adapter", {{"rank", 2}}},
                               {"data", {{"type", "copying"}, {"valid", 2}}},
                               {"train", {{"steps", 1}, {"batch", 1}, {"length", 24}}}},
                              "")
                      .model_plan())
          .spec()
          .vocab;
  // whatever the file's vocabulary, letters within it
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    const auto letter = [&](int n) {
      return std::string(
          1, static_cast<char>((i * 5 + n * 3) % (std::min<int64_t>(vocab, 127) - 1) + 1));
    };
    lines += Json{{"prompt", letter(0) + letter(1)},
                  {"chosen", letter(2) + letter(3)},
                  {"rejected", letter(9) + letter(4)}}
                 .dump() +
             "\n";
  }
  s.json["data"]["train"] = {s.folder.write("small.jsonl", lines)};
  std::vector<double> losses;
  const TrainOptions watch{
      .on_step = [&](const LogLine& line, int64_t) { losses.push_back(line.loss); }};
  train(s.recipe(), s.run("first"), watch);
  // by the arithmetic of training on both sides, and without dropout
  EXPECT_NEAR(losses.front(), std::log(2.0), 1e-6);
  EXPECT_LT(losses.back(), losses.front() - 0.01);
  goes_on_bit_for_bit(s, {}, infer::kAdapterFile);
}

TEST(Preference, IsStoredUnderTheHashOfModelAndData) {
  const Setting s;
  const auto files = [&](const char* run) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(s.run(run) / "cache"))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  };
  const auto opened = [&](const char* run, const std::vector<std::string>& changes) {
    int said = 0;
    open_objective(s.recipe(changes),
                   {.cache = s.run(run) / "cache", .say = [&](const std::string&) { ++said; }});
    return said;
  };
  EXPECT_EQ(opened("a", {}), 1);
  EXPECT_EQ(opened("a", {}), 0);  // known
  EXPECT_EQ(files("a").size(), 1u);
  EXPECT_EQ(opened("a", {"objective.beta=0.5"}), 0);
  EXPECT_EQ(opened("a", {"train.seed=3"}), 1);     // another model
  EXPECT_EQ(opened("a", {"train.length=12"}), 1);  // other prompts
  EXPECT_EQ(files("a").size(), 3u);
  EXPECT_EQ(opened("b", {R"(objective={"type": "preference", "loss": "simpo"})"}), 0);
  EXPECT_FALSE(fs::exists(s.run("b") / "cache"));
  // of a longer run the pairs that are new alone, with the same numbers
  const Setting many(400);
  const auto values = [&](const char* run, int64_t steps) {
    open_objective(many.recipe({fmt::format("train.steps={}", steps), "data.valid_fraction=0.01"}),
                   {.cache = many.run(run)});
    const fs::path file = fs::directory_iterator(many.run(run))->path();
    return read_text_file(file);
  };
  const std::string few = values("grown", 5);
  EXPECT_NE(few, values("whole", 200));
  EXPECT_EQ(values("grown", 200), values("whole", 200));
}

}  // namespace
}  // namespace tessera::train::preference_test
