// Training over segments: rows that go on from step to step.
#include "tessera/train/loop/tbptt.h"

#include "tessera/infer/evaluation/score.h"
#include "tessera/base/testing.h"
#include "tessera/format/safetensors.h"
#include "tessera/train/loop/checkpoint.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/objective/objective_testing.h"
#include "tessera/train/objective/loss.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"
#include "tessera/train/loop/trainer.h"

namespace tessera::train::tbptt_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kXl =
    R"({"type": "transformer_xl", "n_heads": 2, "segment": 8, "mem_len": 8})";

struct Setting {
  TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));

  explicit Setting(const std::string& mixer) {
    json["spec"]["layers"] = Json::array({{{"repeat", 2}}});
    json["spec"]["mixer"] = json_of(mixer);
    json["train"]["windows"] = "carried";
  }
  Recipe recipe(const std::vector<std::string>& overrides = {}) const {
    return read_recipe(json, "", overrides);
  }
  model::Model model(uint64_t seed = 3) const {
    const Recipe r = recipe();
    return {r.spec, model::Weights::initial(r.spec, seed)};
  }
  TrainResult train(const std::string& name,
                    const TrainOptions& options = {},
                    const std::vector<std::string>& overrides = {}) const {
    return train::train(recipe(overrides), folder / name, options);
  }
};

std::string refusal(const Setting& s, const std::vector<std::string>& overrides) {
  return test::error_of(ErrorKind::spec, [&] { s.recipe(overrides); });
}

#define EXPECT_HAS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << std::string(text)

/// A split of documents of the given lengths, whose tokens count upwards.
TokenSplit split_of(const TemporaryFolder& folder, const std::vector<int64_t>& documents) {
  TokenWriter writer(folder / "split.tokens", 256);
  int32_t next = 0;
  for (const int64_t length : documents) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < length; ++i) ids.push_back(next++ % 251);
    writer.append(ids);
    writer.end_document(length);
  }
  writer.finish();
  return TokenSplit::open(folder / "split.tokens");
}

struct Passed {
  int64_t stream, begin, length, start;
};

/// What rows see, window by window of the whole split in `streams` runs.
std::vector<Passed> walk(const model::Model& model,
                         const TokenSplit& split,
                         int64_t length,
                         int64_t limit,
                         std::vector<Tensor>* outputs = nullptr) {
  const at::NoGradGuard no_gradients;
  RecurrentStates rows(model.spec(), 1, limit);
  std::vector<Passed> out;
  for (const Window& window : windows_in_order(split.tokens(), length)) {
    const PackedBatch packed = pack(split, std::span(&window, 1));
    nn::Batch batch = batch_of(packed);
    const Tensor targets = targets_of(packed);
    model::State state = rows.enter(batch, packed, {0});
    for (size_t i = 0; i < packed.pieces.size(); ++i)
      out.push_back({0, window.begin + packed.pieces[i].begin, packed.pieces[i].length,
                     batch.segments[i].start});
    model::ForwardOptions options;
    options.state = &state;
    const Tensor hidden = model.hidden(batch, options);
    if (outputs != nullptr) outputs->push_back(hidden);
    rows.leave(state, batch, packed, {0});
  }
  return out;
}

TEST(RecurrentStates, GoOnThroughADocumentAndNoFurther) {
  const Setting s(kXl);
  const model::Model model = s.model();
  // windows of 6: one document over three of them, two inside one, one that ends with its window
  const std::vector<int64_t> documents{15, 2, 7, 12, 5};
  const TokenSplit split = split_of(s.folder, documents);
  std::vector<Tensor> outputs;
  int64_t at = 0;
  for (const Passed& piece : walk(model, split, 6, 0, &outputs)) {
    EXPECT_EQ(piece.begin, at);
    // its place in its document
    int64_t document = 0;
    for (size_t d = 0; d < documents.size() && document + documents[d] <= at; ++d)
      document += documents[d];
    EXPECT_EQ(piece.start, at - document) << "token " << at;
    at += piece.length;
  }
  EXPECT_EQ(at, split.tokens() - 1);
  // the same as whole documents
  const at::NoGradGuard no_gradients;
  std::vector<std::vector<int64_t>> rows;
  int64_t begin = 0;
  for (const int64_t length : documents) {
    std::vector<int64_t> ids(static_cast<size_t>(length));
    split.read(begin, ids);
    rows.push_back(ids);
    begin += length;
  }
  const Tensor want = model.hidden(nn::Batch::of(rows)).narrow(0, 0, at);
  EXPECT_TRUE(at::equal(at::cat(outputs), want));
}

TEST(RecurrentStates, ForgetBeyondTheLimit) {
  const Setting s(kXl);
  const TokenSplit split = split_of(s.folder, {40});
  std::vector<int64_t> starts;
  for (const Passed& piece : walk(s.model(), split, 6, 15)) starts.push_back(piece.start);
  EXPECT_EQ(starts, (std::vector<int64_t>{0, 6, 0, 6, 0, 6, 12}));
}

TEST(RecurrentStates, SavedAndLoadedTheyGoOnTheSame) {
  const Setting s(kXl);
  const model::Model model = s.model();
  const TokenSplit split = split_of(s.folder, {12, 100});
  const std::vector<Window> windows{{0, 12}, {30, 6}};  // the first ends with its document
  const std::vector<Window> next{{12, 6}, {36, 6}};
  const auto step = [&](RecurrentStates& rows, const std::vector<Window>& some) {
    const at::NoGradGuard no_gradients;
    const PackedBatch packed = pack(split, some);
    nn::Batch batch = batch_of(packed);
    const Tensor targets = targets_of(packed);
    model::State state = rows.enter(batch, packed, {0, 1});
    model::ForwardOptions options;
    options.state = &state;
    const Tensor hidden = model.hidden(batch, options);
    rows.leave(state, batch, packed, {0, 1});
    return hidden;
  };
  RecurrentStates rows(model.spec(), 2, 0), loaded(model.spec(), 2, 0);
  step(rows, windows);
  EXPECT_EQ(rows.length(0), 0);
  EXPECT_EQ(rows.length(1), 6);
  rows.save(s.folder / "rows.safetensors");
  loaded.load(s.folder / "rows.safetensors");
  EXPECT_EQ(loaded.length(0), 0);
  EXPECT_EQ(loaded.length(1), 6);
  EXPECT_TRUE(at::equal(step(loaded, next), step(rows, next)));
}

/// Gradients of a loss on the second window, by the names of the parameters.
std::map<std::string, Tensor> gradients_of_second(const model::Model& model, bool carried) {
  const std::vector<std::vector<int64_t>> first{{1, 2, 3, 4, 5, 6}}, second{{7, 8, 9, 1, 2, 3}};
  model::State state(model.spec(), 1);
  model::ForwardOptions options;
  if (carried) {
    options.state = &state;
    model.hidden(nn::Batch::of(first), options);
    state.detach();
  }
  for (const auto& [decl, weight] : model.weights().all())
    Tensor(weight->dense_tensor()).mutable_grad() = Tensor();
  const nn::Batch batch = carried ? nn::Batch::of(second, {6}) : nn::Batch::of(second);
  model.hidden(batch, options).square().sum().backward();
  std::map<std::string, Tensor> out;
  for (const auto& [decl, weight] : model.weights().all())
    if (weight->dense_tensor().grad().defined())
      out[decl.name] = weight->dense_tensor().grad().clone();
  return out;
}

TEST(RecurrentStates, AStateIsReadAndItsGradientStops) {
  // memories over segments, recurrences and a ring of keys
  for (
      const char* mixer :
      {R"({"type": "transformer_xl", "n_heads": 2, "segment": 6, "mem_len": 6})",
       R"({"type": "compressive", "n_heads": 2, "segment": 3, "mem_len": 3, "n_compressed": 2, "rate": 3})",
       R"({"type": "memorizing", "n_heads": 2, "segment": 6, "memory": 12, "top_k": 3})",
       R"({"type": "mamba2", "n_heads": 2, "d_state": 4})",
       R"({"type": "gated_delta_net", "n_heads": 2})",
       R"({"type": "attention", "n_heads": 2, "position": "rope", "pattern": {"type": "window", "width": 8}})"}) {
    SCOPED_TRACE(mixer);
    const Setting s(mixer);
    const model::Model model = s.model();
    auto with = gradients_of_second(model, true), without = gradients_of_second(model, false);
    const Tensor embedding = with["embed.token.weight"];
    // tokens of the second window alone: the first holds 4, 5 and 6 besides
    EXPECT_EQ(embedding.narrow(0, 4, 3).abs().max().item<double>(), 0);
    EXPECT_GT(embedding[7].abs().max().item<double>(), 0);
    EXPECT_FALSE(at::allclose(embedding, without["embed.token.weight"])) << "nothing was carried";
  }
}

TEST(RecurrentStates, DropoutOfWeightsActsWithAState) {
  for (
      const char* mixer :
      {R"({"type": "attention", "n_heads": 2, "position": "rope", "dropout": 0.5})",
       R"({"type": "differential_attention", "n_heads": 2, "position": "rope", "dropout": 0.5})",
       R"({"type": "transformer_xl", "n_heads": 2, "segment": 9, "mem_len": 4, "dropout": 0.5})"}) {
    SCOPED_TRACE(mixer);
    Setting s(mixer);
    s.json["train"]["carry_limit"] = 64;
    const model::Model model = s.model();
    const nn::Batch batch = nn::Batch::of({{1, 2, 3, 4, 5, 6, 7}});
    const auto run = [&](bool with_state, bool training) {
      model::State state(model.spec(), 1);
      model::ForwardOptions options;
      options.state = with_state ? &state : nullptr;
      options.training = training;
      options.key = RandomKey(5);
      return model.hidden(batch, options).detach();
    };
    EXPECT_LT((run(true, true) - run(false, true)).abs().max().item<double>(), 1e-5);
    EXPECT_GT((run(true, true) - run(true, false)).abs().max().item<double>(), 1e-3);
  }
}

// --- the trainer ---------------------------------------------------------------------------------

std::string untimed_log(const fs::path& run) {
  std::string out, text = read_text_file(run / "log.jsonl");
  for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    Json line = json_of(std::string_view(text).substr(begin, end - begin));
    line.erase("seconds");
    line.erase("tokens_per_s");
    out += line.dump() + "\n";
  }
  return out;
}

TEST(CarriedTraining, ResumesBitForBit) {
  for (const char* mixer :
       {kXl,
        R"({"type": "compressive", "n_heads": 2, "segment": 8, "mem_len": 8, "n_compressed": 4})",
        R"({"type": "memorizing", "n_heads": 2, "segment": 8, "memory": 32, "top_k": 4})",
        R"({"type": "mamba2", "n_heads": 2, "d_state": 4})"}) {
    SCOPED_TRACE(mixer);
    Setting s(mixer);
    s.json["spec"]["residual"] = {{"type", "pre_norm"}, {"dropout", 0.2}};
    s.json["train"]["accumulate"] = 2;
    s.json["train"]["batch"] = 3;
    s.json["train"]["carry_limit"] = 100;  // rows begin anew on the way
    s.train("whole");
    for (const int64_t cut : {4, 7}) {
      const std::string name = fmt::format("cut{}", cut);
      CancelToken cancel;
      const auto stop = [&](const LogLine& line, int64_t) {
        if (line.step == cut) cancel.request(15);
      };
      expect_error(ErrorKind::cancelled, "stopped on request",
                   [&] { s.train(name, {.cancel = &cancel, .on_step = stop}); });
      EXPECT_TRUE(fs::exists(s.folder / name / "latest/carried.safetensors"));
      s.train(name, {.resume = true});
      for (const char* file : {"model.safetensors", "optimizer.safetensors", "carried.safetensors"})
        EXPECT_TRUE(read_text_file(checkpoint_folder(s.folder / "whole", 12) / file) ==
                    read_text_file(checkpoint_folder(s.folder / name, 12) / file))
            << file;
      EXPECT_EQ(untimed_log(s.folder / "whole"), untimed_log(s.folder / name));
    }
    for (const auto& entry : fs::directory_iterator(s.folder.path()))
      if (entry.is_directory()) fs::remove_all(entry.path());
  }
}

TEST(CarriedTraining, RunsThroughEpochsAndShortTexts) {
  const Setting s(kXl);
  for (const size_t bytes : {30, 200, 700}) {
    const std::string file = s.folder.write("short.txt", counting_text(bytes));
    const TrainResult result =
        s.train(fmt::format("short{}", bytes), {},
                {"data.train=[\"" + file + "\"]", "data.valid_fraction=0.4", "train.steps=9"});
    EXPECT_TRUE(std::isfinite(result.last->loss)) << bytes;
    EXPECT_TRUE(result.last->valid_loss && std::isfinite(*result.last->valid_loss)) << bytes;
  }
  const std::string file = s.folder.write("tiny.txt", counting_text(6));
  expect_error(ErrorKind::input, "lower train.batch", [&] {
    s.train("tiny", {}, {"data.train=[\"" + file + "\"]", "data.valid_fraction=0.4"});
  });
}

TEST(CarriedTraining, DocumentsOfManyLengths) {
  const Setting s(kXl);
  std::string lines;
  for (int i = 0; i < 60; ++i)
    lines += Json{{"text", counting_text(static_cast<size_t>(3 + i % 23))}}.dump() + "\n";
  const std::string file = s.folder.write("docs.jsonl", lines);
  const TrainResult result =
      s.train("a", {}, {"data.train=[\"" + file + "\"]", "data.format=jsonl", "train.steps=30"});
  EXPECT_LT(result.last->loss, 3.5);
}

TEST(CarriedTraining, AMemoryHelps) {
  // blocks of 8 characters stand four times each: three quarters of the text is told by what stands
  // 8 back, which a window of 8 hardly holds
  std::string text;
  RandomKey key(4);
  for (uint64_t i = 0; text.size() < 12000; ++i) {
    std::string block;
    for (uint64_t j = 0; j < 8; ++j)
      block += static_cast<char>('a' + key.fold(i).fold(j).value() % 16);
    for (int times = 0; times < 4; ++times) text += block;
  }
  Setting s(kXl);
  const std::string file = s.folder.write("blocks.txt", text);
  std::map<std::string, double> loss;
  for (const char* windows : {"carried", "isolated"})
    loss[windows] =
        *s.train(windows, {},
                 {"data.train=[\"" + file + "\"]", "train.length=8", "train.batch=16",
                  "train.steps=250", "optimizer.lr=0.01", std::string("train.windows=") + windows})
             .last->valid_loss;
  // ln 16 = 2.77 knows nothing; always trusting what stands 8 back gives about 1.24
  EXPECT_LT(loss["carried"], 1.7);
  EXPECT_GT(loss["isolated"], 2.4);
}

TEST(CarriedTraining, TheCompressionLearns) {
  const Setting s(
      R"({"type": "compressive", "n_heads": 2, "segment": 8, "mem_len": 8, "n_compressed": 4, "rate": 4})");
  const TrainResult result = s.train("a", {}, {"train.steps=6"});
  const model::Model model = load_model(result.checkpoint);
  const auto initial = model::Weights::initial(s.recipe().spec, 0);
  for (const char* name : {"compress.weight", "compress.bias"}) {
    const std::string full = fmt::format("layers.0.mixer.{}", name);
    // AdamW moves by about the rate, 0.01, at each step; decay alone would move far less
    EXPECT_GT((model.weights().find(full)->tensor() - initial.find(full)->tensor())
                  .abs()
                  .max()
                  .item<double>(),
              5e-3)
        << full;
  }
}

TEST(CarriedTraining, Refusals) {
  const Setting s(kXl);
  EXPECT_HAS(refusal(s, {"train.carry_limit=7"}), "expected at least train.length = 16");
  EXPECT_HAS(refusal(s, {"train.windows=isolated", "train.carry_limit=100"}), "has no meaning");
  const std::string prefix =
      "spec.mixer={\"type\":\"attention\",\"n_heads\":2,\"pattern\":"
      "{\"type\":\"prefix\",\"length\":3}}";
  EXPECT_HAS(refusal(s, {prefix, "train.carry_limit=64"}),
             "[train.windows] \"carried\" cuts documents anywhere, but the first 3 tokens");
  EXPECT_HAS(refusal(s, {"spec.mixer={\"type\":\"attention\",\"n_heads\":2}"}),
             "keeps every token of a document");
  EXPECT_HAS(refusal(s, {"spec.mixer={\"type\":\"lsh_attention\",\"n_heads\":2}"}),
             "lsh_attention offers no recurrent form; use \"isolated\"");
  EXPECT_HAS(refusal(s, {"spec.embed={\"type\":\"token\",\"position\":{\"type\":\"learned\","
                         "\"n_positions\":64}}"}),
             "expected 1 to 64");
  EXPECT_EQ(
      refusal(s, {"spec.mixer={\"type\":\"attention\",\"n_heads\":2}", "train.carry_limit=64"}),
      "");
}

// --- evaluation ----------------------------------------------------------------------------------

TEST(CarriedEvaluation, PredictsEveryTokenOnceWithItsPast) {
  const Setting s(R"({"type": "transformer_xl", "n_heads": 2, "segment": 5, "mem_len": 40})");
  const model::Model model = s.model();
  const TokenSplit split = split_of(s.folder, {33, 4, 20});
  const at::NoGradGuard no_gradients;
  // whole documents: the same as carried windows, in one stream
  double nats = 0;
  int64_t begin = 0;
  for (const int64_t length : {33, 4, 20}) {
    std::vector<int64_t> ids(static_cast<size_t>(length));
    split.read(begin, ids);
    begin += length;
    std::vector<int64_t> targets(ids.begin() + 1, ids.end());
    targets.push_back(-1);
    nats += infer::score(model, model.hidden(nn::Batch::of({ids})), at::tensor(targets, at::kLong))
                .nats;
  }
  EvaluateOptions options{.batch = 1};
  options.carried = true;
  const Evaluation carried = evaluate_split(model, split, 6, options);
  EXPECT_EQ(carried.tokens, 32 + 3 + 19);
  EXPECT_NEAR(carried.loss, nats / 54, 1e-9);
  // streams begin without a past, but predict as many
  options.batch = 3;
  EXPECT_EQ(evaluate_split(model, split, 6, options).tokens, 54);
  options.batches = 1;
  EXPECT_LE(evaluate_split(model, split, 6, options).tokens, 18);
  options = {.batch = 1};
  EXPECT_GT(std::abs(evaluate_split(model, split, 6, options).loss - carried.loss), 1e-5);
}

}  // namespace
}  // namespace tessera::train::tbptt_test
