#include "tessera/train/loop/trainer.h"

#include "tessera/base/threads.h"
#include "tessera/format/safetensors.h"
#include "tessera/kernels/weights/gemm.h"
#include "tessera/train/loop/checkpoint.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::trainer_test {
namespace {

namespace fs = std::filesystem;

struct Setting {
  TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));

  Recipe recipe(const std::vector<std::string>& overrides = {}) const {
    return read_recipe(json, "", overrides);
  }
  fs::path run(const std::string& name) const { return folder / name; }
  TrainResult train(const std::string& name,
                    const TrainOptions& options = {},
                    const std::vector<std::string>& overrides = {}) const {
    return train::train(recipe(overrides), run(name), options);
  }
};

/// The log without what may differ between equal runs.
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

std::string bytes_of(const fs::path& file) {
  return read_text_file(file);
}

void expect_same_run(const fs::path& a, const fs::path& b, int64_t step) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(bytes_of(checkpoint_folder(a, step) / file) ==
                bytes_of(checkpoint_folder(b, step) / file))
        << file;
  EXPECT_EQ(untimed_log(a), untimed_log(b));
}

TEST(Trainer, LossFalls) {
  const Setting s;
  std::vector<double> losses;
  const TrainResult result =
      s.train("a", {.on_step = [&](const LogLine& line, int64_t) { losses.push_back(line.loss); }},
              {"train.steps=60"});
  ASSERT_EQ(losses.size(), 60u);
  EXPECT_NEAR(losses.front(), std::log(256.0), 0.1);  // knows nothing
  EXPECT_LT(losses.back(), 2.6);                      // knows which characters occur: ln 12 = 2.48
  ASSERT_TRUE(result.last && result.last->valid_loss);
  EXPECT_LT(*result.last->valid_loss, 2.6);
  EXPECT_NEAR(*result.last->valid_bits_per_byte, *result.last->valid_loss / std::log(2.0), 1e-12);
  EXPECT_TRUE(fs::exists(s.run("a") / "latest/model.safetensors"));
  EXPECT_EQ(result.checkpoint, s.run("a") / "step-60");
}

TEST(Trainer, RanksOfARingLearnTheSame) {
  const Setting s;
  const auto losses = [&](const std::string& name, const nn::SequenceSplit& split) {
    std::vector<double> out;
    s.train(name,
            {.sequence = split,
             .on_step = [&](const LogLine& line, int64_t) { out.push_back(line.loss); }},
            {"train.steps=6"});
    return out;
  };
  const auto one = losses("one", {}), ring = losses("ring", {4, ops::RingLayout::striped});
  ASSERT_EQ(ring.size(), 6u);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(ring[i], one[i], 1e-4) << i;
  // a rank's sums are formed in another order: that it was a ring shows in the last bits
  EXPECT_NE(ring, one);
}

TEST(Trainer, ARingThatCannotComputeTheModelLeavesNoFolder) {
  Setting s;
  s.json["train"]["length"] = 16;
  const auto refused = [&](ErrorKind kind, const char* reason, const char* change) {
    SCOPED_TRACE(change);
    const std::vector<std::string> changes{change, "train.steps=2"};
    expect_error(kind, reason, [&] {
      s.train("refused", {.sequence = {2, ops::RingLayout::striped}}, changes);
    });
    EXPECT_FALSE(fs::exists(s.run("refused")));
  };
  refused(ErrorKind::usage, "no mixer is \"attention\"",
          R"(spec.layers[0].mixer={"type": "short_conv"})");
  refused(
      ErrorKind::usage, "train.windows \"carried\" continues from a state; expected \"isolated\"",
      R"(train={"steps": 2, "batch": 1, "length": 16, "windows": "carried", "carry_limit": 64})");
  const auto mixer = [](const char* rest) {
    return fmt::format(R"(spec.layers[0].mixer={{"type": "attention", "n_heads": 2, {}}})", rest);
  };
  refused(ErrorKind::spec, "[layers.0.mixer] dropout = 0.1 of the weights cannot be computed",
          mixer(R"("dropout": 0.1)").c_str());
  refused(ErrorKind::spec, "which counts every key between key and query",
          mixer(R"("position": {"type": "cope", "n_positions": 4})").c_str());
  refused(ErrorKind::spec, "global tokens with projections of their own",
          mixer(R"("pattern": {"type": "longformer", "width": 4, "global_tokens": [0],
                               "projections": "separate"})")
              .c_str());
  const auto sinks = [&](int width) {
    return mixer(fmt::format(R"("position": "rope",
        "pattern": {{"type": "sink_window", "first": 2, "width": {}}})",
                             width)
                     .c_str());
  };
  refused(ErrorKind::spec, "other queries for the first keys", sinks(3).c_str());
  // no query of a window is so far
  s.train("near", {.sequence = {2, ops::RingLayout::striped}}, {sinks(14), "train.steps=2"});
  EXPECT_TRUE(fs::exists(s.run("near") / "latest"));
}

TEST(Trainer, ResumesBitForBit) {
  // dropout, accumulation and an odd number of windows
  Setting s;
  s.json["spec"]["residual"] = {{"type", "pre_norm"}, {"dropout", 0.2}};
  s.json["train"]["accumulate"] = 2;
  s.train("whole");
  for (const int64_t cut : {1, 4, 5, 7, 11}) {
    const std::string name = fmt::format("cut{}", cut);
    CancelToken cancel;
    const auto stop = [&](const LogLine& line, int64_t) {
      if (line.step == cut) cancel.request(15);
    };
    expect_error(ErrorKind::cancelled, "stopped on request",
                 [&] { s.train(name, {.cancel = &cancel, .on_step = stop}); });
    EXPECT_EQ(checkpoint_steps(s.run(name)).back(), cut);
    s.train(name, {.resume = true});
    expect_same_run(s.run("whole"), s.run(name), 12);
  }
}

TEST(Trainer, InBf16LearnsAsInFloat32WithAnyThreadsAndResumesBitForBit) {
  if (!kernels::has_bf16_units()) GTEST_SKIP() << "no units for bf16";
  const Setting s;
  const std::string bf16 = "train.precision=bf16";
  const double exact = *s.train("exact", {}, {"train.steps=60"}).last->valid_loss,
               rounded = *s.train("rounded", {}, {"train.steps=60", bf16}).last->valid_loss;
  EXPECT_NE(exact, rounded);
  EXPECT_NEAR(exact, rounded, 0.05);

  s.train("one", {}, {bf16, "train.threads=1"});
  s.train("three", {}, {bf16, "train.threads=3"});
  expect_same_run(s.run("one"), s.run("three"), 12);
  EXPECT_THROW(s.train("cut",
                       {.on_step =
                            [](const LogLine& line, int64_t) {
                              if (line.step == 8) throw std::runtime_error("crash");
                            }},
                       {bf16}),
               std::runtime_error);
  expect_error(ErrorKind::spec, "\"train.precision\" differs",
               [&] { s.train("cut", {.resume = true}); });
  s.train("cut", {.resume = true}, {bf16});
  expect_same_run(s.run("one"), s.run("cut"), 12);
}

TEST(Trainer, InFp16LearnsAsInFloat32OfAScaledLossAndResumesBitForBit) {
  const Setting s;
  const std::string fp16 = "train.precision=fp16";
  const double exact = *s.train("exact", {}, {"train.steps=60"}).last->valid_loss,
               rounded = *s.train("rounded", {}, {"train.steps=60", fp16}).last->valid_loss;
  EXPECT_NE(exact, rounded);
  EXPECT_NEAR(exact, rounded, 0.02);
  // without the scale other gradients are left of the rounding
  const std::string small = "train.loss_scale=1";
  EXPECT_NE(*s.train("unscaled", {}, {"train.steps=60", fp16, small}).last->valid_loss, rounded);

  // too large a scale leaves updates out until it is none, and a run that goes on knows it
  const std::string large = "train.loss_scale=1e9";
  std::vector<LogLine> lines;
  s.train("whole", {.on_step = [&](const LogLine& line, int64_t) { lines.push_back(line); }},
          {fp16, large, "train.threads=1"});
  ASSERT_EQ(lines.size(), 12u);
  EXPECT_EQ(lines[0].loss_scale, 1e9);
  EXPECT_EQ(lines[0].grad_norm, 0);
  ASSERT_EQ(lines[0].warnings.size(), 1u);
  EXPECT_NE(lines[0].warnings[0].find("no update is made"), std::string::npos);
  EXPECT_EQ(lines[1].loss_scale, 5e8);
  EXPECT_GT(lines[11].grad_norm, 0) << "still too large: " << *lines[11].loss_scale;
  EXPECT_THROW(s.train("cut",
                       {.on_step =
                            [](const LogLine& line, int64_t) {
                              if (line.step == 8) throw std::runtime_error("crash");
                            }},
                       {fp16, large, "train.threads=3"}),
               std::runtime_error);
  s.train("cut", {.resume = true}, {fp16, large, "train.threads=3"});
  expect_same_run(s.run("whole"), s.run("cut"), 12);
}

TEST(Trainer, Bf16IsRefusedWithoutUnitsForIt) {
  const Setting s;
  expect_error(ErrorKind::usage, "[train.precision] \"bf16\": this processor",
               [&] { check_precision(Precision::bf16, false); });
  check_precision(Precision::bf16, true);
  check_precision(s.recipe().train.precision, false);
  expect_error(ErrorKind::spec, "train.precision", [&] { s.recipe({"train.precision=fp8"}); });
}

TEST(Trainer, ResumesFromTheLastCheckpointAfterACrash) {
  const Setting s;
  s.train("whole");
  // a crash after step 8: checkpoint 5, log lines up to 8
  EXPECT_THROW(s.train("crash", {.on_step =
                                     [](const LogLine& line, int64_t) {
                                       if (line.step == 8) throw std::runtime_error("crash");
                                     }}),
               std::runtime_error);
  EXPECT_EQ(checkpoint_steps(s.run("crash")), std::vector<int64_t>{5});
  s.train("crash", {.resume = true});
  expect_same_run(s.run("whole"), s.run("crash"), 12);
  // a complete run has nothing left to do
  EXPECT_FALSE(s.train("crash", {.resume = true}).last);
}

TEST(Trainer, AccumulationEqualsALargerBatch) {
  const Setting s;
  s.train("one", {}, {"train.batch=8", "train.steps=3", "schedule.warmup=0"});
  s.train("two", {}, {"train.batch=4", "train.accumulate=2", "train.steps=3", "schedule.warmup=0"});
  const auto a = format::open_safetensors(s.run("one") / "latest/model.safetensors"),
             b = format::open_safetensors(s.run("two") / "latest/model.safetensors");
  for (const auto& view : a.tensors()) {
    const auto *x = reinterpret_cast<const float*>(view.data.data()),
               *y = reinterpret_cast<const float*>(b.at(view.name).data.data());
    // the first AdamW steps move by about lr = 0.01 each; rounding may flip tiny gradients' share
    // of it
    double distance = 0;
    const size_t n = view.data.size() / 4;
    for (size_t i = 0; i < n; ++i) distance += std::abs(x[i] - y[i]);
    EXPECT_LT(distance / static_cast<double>(n), 1e-4) << view.name;
  }
}

TEST(Trainer, CheckpointIsAModel) {
  const Setting s;
  const TrainResult result = s.train("a", {}, {"train.steps=3"});
  const model::Model model = load_model(result.checkpoint);
  EXPECT_EQ(model::resolve(model.spec()), model::resolve(s.recipe().spec));
  const at::NoGradGuard no_grad;
  EXPECT_EQ(model.logits(model.hidden(nn::Batch::of({{1, 2, 3}}))).size(1), 256);
}

TEST(Trainer, RefusesAnotherRecipeOrData) {
  const Setting s;
  s.train("a", {}, {"train.steps=4"});
  expect_error(ErrorKind::usage, "holds checkpoints up to step 4; resume that run (--resume)",
               [&] { s.train("a", {}, {"train.steps=4"}); });
  expect_error(ErrorKind::spec, "\"optimizer.lr\" differs", [&] {
    s.train("a", {.resume = true}, {"train.steps=4", "optimizer.lr=0.5"});
  });
  expect_error(ErrorKind::spec, "\"train.steps\" differs",
               [&] { s.train("a", {.resume = true}, {"train.steps=3"}); });
  // more steps, and something else
  expect_error(ErrorKind::spec, "\"train.seed\" differs", [&] {
    s.train("a", {.resume = true}, {"train.steps=9", "train.seed=7"});
  });
  s.folder.write("text.txt", counting_text(2999));
  expect_error(ErrorKind::spec, "differs in content",
               [&] { s.train("a", {.resume = true}, {"train.steps=4"}); });
}

TEST(Trainer, ARefusedRecipeChangesNothingInTheFolder) {
  const Setting s;
  s.train("a", {}, {"train.steps=4"});
  const auto state = [&] {
    std::map<std::string, std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(s.run("a")))
      if (entry.is_regular_file() && entry.path().filename() != "lock")
        out[entry.path().string()] = fmt::format(
            "{} {}", entry.last_write_time().time_since_epoch().count(), bytes_of(entry.path()));
    return out;
  };
  const auto before = state();
  bool begun = false;
  const TrainOptions options{.resume = true, .on_begin = [&] { begun = true; }};
  expect_error(ErrorKind::spec, "\"optimizer.lr\" differs", [&] {
    s.train("a", options, {"train.steps=23", "optimizer.lr=0.5"});
  });
  EXPECT_FALSE(begun);
  EXPECT_TRUE(before == state());
  // neither when the data turn out to be others
  s.folder.write("text.txt", counting_text(2999));
  expect_error(ErrorKind::spec, "differs in content",
               [&] { s.train("a", options, {"train.steps=23"}); });
  EXPECT_FALSE(begun);
  for (const char* file : {"recipe.json", "written.json", "log.jsonl"})
    EXPECT_EQ(state()[(s.run("a") / file).string()], before.at((s.run("a") / file).string()));
}

TEST(Trainer, AFinishedRunGoesOnForMoreSteps) {
  const Setting s;
  // the warm-up follows from the steps
  const std::string schedule = R"(schedule={"type": "linear", "warmup_fraction": 0.5})";
  s.train("a", {}, {"train.steps=4", schedule});
  std::vector<double> rates;
  std::vector<std::string> lines;
  const TrainResult result =
      s.train("a",
              {.resume = true,
               .on_step = [&](const LogLine& line, int64_t) { rates.push_back(line.lr); },
               .on_start = [&](const std::string& line) { lines.push_back(line); }},
              {"train.steps=12", schedule});
  EXPECT_EQ(result.step, 12);
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.front(),
            "train.steps = 12 instead of 4: the learning-rate schedule of 12 steps applies from "
            "step 4 on");
  // 0.01 after 6 steps of warm-up, then down to a tenth: 4/6 and 5/6 of it, the peak, and so on
  ASSERT_EQ(rates.size(), 8u);
  EXPECT_NEAR(rates[0], 0.01 * 4 / 6, 1e-12);
  EXPECT_NEAR(rates[1], 0.01 * 5 / 6, 1e-12);
  EXPECT_NEAR(rates[2], 0.01, 1e-12);
  EXPECT_NEAR(rates[7], 0.01 * (0.1 + 0.9 / 6), 1e-12);
  EXPECT_EQ(spec::read_json_file(s.run("a") / "recipe.json")["train"]["steps"], 12);
  // and then as it is
  lines.clear();
  s.train("a",
          {.resume = true, .on_start = [&](const std::string& line) { lines.push_back(line); }},
          {"train.steps=12", schedule});
  for (const std::string& line : lines) EXPECT_EQ(line.find("instead of"), std::string::npos);
}

TEST(Trainer, CorruptCheckpointIsNamed) {
  const Setting s;
  s.train("a", {}, {"train.steps=2"});
  const fs::path file = s.run("a") / "step-2/model.safetensors";
  std::string content = bytes_of(file);
  content[content.size() - 3] ^= 1;
  std::ofstream(file, std::ios::binary) << content;
  expect_error(ErrorKind::file, "step-2/model.safetensors: its SHA-256 differs",
               [&] { s.train("a", {.resume = true}, {"train.steps=2"}); });
}

TEST(Trainer, TwoTrainersOnOneFolder) {
  const Setting s;
  const auto second = [&](const LogLine& line, int64_t) {
    if (line.step == 1) expect_error(ErrorKind::resource, "another trainer", [&] { s.train("a"); });
  };
  s.train("a", {.on_step = second}, {"train.steps=2"});
}

TEST(Trainer, StopsAtNonFiniteNumbers) {
  const Setting s;
  // an absurd rate: the next forward pass overflows
  const std::string what = test::error_of(ErrorKind::input, [&] {
    s.train(
        "a", {},
        {"optimizer.lr=1e30", "schedule.type=constant", "checkpoint.every=1", "train.clip_norm=0"});
  });
  EXPECT_NE(what.find("[train] step "), std::string::npos) << what;
  EXPECT_NE(what.find("not finite"), std::string::npos) << what;
  EXPECT_NE(what.find("\""), std::string::npos) << what;
  EXPECT_NE(what.find(" is kept"), std::string::npos) << what;
  verify_checkpoint(s.run("a") / "latest");
}

TEST(Trainer, OddSizesOfData) {
  const Setting s;
  for (const size_t bytes : {4, 17, 18, 19, 41}) {
    const std::string file = s.folder.write("odd.txt", counting_text(bytes));
    const std::string name = fmt::format("odd{}", bytes);
    const TrainResult result = s.train(
        name, {}, {"data.train=[\"" + file + "\"]", "data.valid_fraction=0.5", "train.steps=2"});
    EXPECT_TRUE(std::isfinite(result.last->loss)) << bytes;
    EXPECT_TRUE(result.last->valid_loss) << bytes;
  }
  const std::string empty = s.folder.write("empty.txt", "");
  expect_error(ErrorKind::input, "empty.txt: the file is empty",
               [&] { s.train("e", {}, {"data.train=[\"" + empty + "\"]"}); });
}

TEST(Trainer, JsonLinesWithManyDocuments) {
  const Setting s;
  std::string lines;
  for (int i = 0; i < 60; ++i)
    lines += Json{{"text", counting_text(static_cast<size_t>(3 + i % 23))}}.dump() + "\n";
  const std::string file = s.folder.write("docs.jsonl", lines);
  const TrainResult result =
      s.train("a", {}, {"data.train=[\"" + file + "\"]", "data.format=jsonl", "train.steps=30"});
  EXPECT_LT(result.last->loss, 3.5);
}

TEST(Trainer, RefusesDocumentsOfOneToken) {
  const Setting s;
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += "{\"text\": \"a\"}\n";
  const std::string file = s.folder.write("docs.jsonl", lines);
  expect_error(ErrorKind::input,
               "[data] the train split: found 18 documents of one token each, so that no position "
               "has a target; expected one of at least 2 tokens",
               [&] {
                 s.train("a", {}, {"data.train=[\"" + file + "\"]", "data.format=jsonl"});
               });
}

TEST(Trainer, LearnsATaskAndResumesIt) {
  Setting s;
  s.json["data"] = {{"type", "copying"}, {"items", 2}, {"valid", 50}};
  s.json["spec"]["vocab"] = 6;
  const std::vector<std::string> how = {"train.steps=250",      "train.batch=32",
                                        "train.length=5",       "train.eval_every=100",
                                        "train.log_every=1000", "checkpoint.every=200"};
  const TrainResult whole = s.train("whole", {}, how);
  ASSERT_TRUE(whole.last && whole.last->accuracy);
  EXPECT_GT(*whole.last->accuracy, 0.98);  // by chance: 0.25
  EXPECT_FALSE(whole.last->valid_bits_per_byte);
  EXPECT_EQ(whole.last->tokens, 250 * 32 * 2);  // those with a target
  CancelToken cancel;
  const auto stop = [&](const LogLine& line, int64_t) {
    if (line.step == 201) cancel.request(15);
  };
  expect_error(ErrorKind::cancelled, "stopped on request",
               [&] { s.train("cut", {.cancel = &cancel, .on_step = stop}, how); });
  s.train("cut", {.resume = true}, how);
  expect_same_run(s.run("whole"), s.run("cut"), 250);
}

/// Four keys with values, then the keys again among random tokens: a state to which keys are only
/// added mixes up their values, one that first takes away what a key held does not. By chance:
/// 0.25.
TEST(Trainer, TheDeltaRuleRecallsWhatAPlainStateMixesUp) {
  const auto recall = [](const char* mixer) {
    Setting s;
    s.json["data"] = {{"type", "mqar"}, {"items", 4}, {"valid", 256}};
    s.json["spec"] = {
        {"tessera", 1},
        {"arch", "decoder"},
        {"vocab", 32},
        {"d_model", 64},
        {"embed", {{"type", "token"}, {"position", {{"type", "learned"}, {"n_positions", 16}}}}},
        {"norm", {{"type", "rms_norm"}}},
        {"layers", {{{"repeat", 2}, {"mixer", {{"type", mixer}, {"n_heads", 2}}}}}},
        {"ffn", {{"type", "glu"}, {"act", "silu"}, {"d_hidden", 128}}},
        {"head", {{"type", "tied"}}}};
    return s
        .train(mixer, {},
               {"train.threads=1", "train.steps=300", "train.batch=32", "train.length=16",
                "train.eval_every=300", "train.log_every=1000", "optimizer.lr=5e-3",
                "optimizer.weight_decay=0", "schedule.type=cosine", "schedule.warmup=20"})
        .last->accuracy.value();
  };
  const int threads = thread_count();
  EXPECT_GT(recall("delta_net"), 0.98);
  EXPECT_LT(recall("linear_attention"), 0.5);
  set_thread_count(threads);
}

TEST(Trainer, HybridOfMambaAndAttentionLearns) {
  Setting s;
  s.json["spec"]["layers"] = json_of(
      R"([{"mixer": {"type": "mamba2", "n_heads": 2, "d_state": 8}}, {"mixer": {"type": "attention", "n_heads": 2}}])");
  const TrainResult result = s.train("a", {}, {"train.steps=40"});
  EXPECT_LT(result.last->loss, 3.0);
}

}  // namespace
}  // namespace tessera::train::trainer_test
