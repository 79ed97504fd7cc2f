// Runs that end before their last step, and checkpoints that stay.
#include <set>

#include "tessera/train/loop/gradient_norms.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::ending_test {
namespace {

namespace fs = std::filesystem;

struct Setting {
  TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));

  fs::path run(const std::string& name) const { return folder / name; }
  TrainResult train(const std::string& name,
                    const std::vector<std::string>& overrides,
                    const TrainOptions& options = {}) const {
    return train::train(read_recipe(json, "", overrides), run(name), options);
  }
  /// Cut by a crash behind the update `step`, then gone on.
  TrainResult train_cut(const std::string& name,
                        int64_t step,
                        const std::vector<std::string>& overrides) const {
    TrainOptions crash;
    crash.on_step = [&](const LogLine& line, int64_t) {
      if (line.step == step) throw std::runtime_error("crash");
    };
    EXPECT_THROW(train(name, overrides, crash), std::runtime_error);
    return train(name, overrides, {.resume = true});
  }
};

std::vector<Json> lines_of(const fs::path& run) {
  std::vector<Json> out;
  std::ifstream file(run / "log.jsonl");
  for (std::string line; std::getline(file, line);) {
    out.push_back(json_of(line));
    for (const char* timing : {"seconds", "tokens_per_s"}) out.back().erase(timing);
  }
  return out;
}

std::string model_of(const fs::path& run) {
  return read_text_file(run / "latest/model.safetensors");
}

TEST(Ending, WithoutPatienceLeft) {
  const Setting s;
  // nothing is better by 10 nats: the first evaluation, at step 2, stays the best
  const std::vector<std::string> how{"train.eval_every=2", "stop.patience=2", "stop.min_delta=10"};
  const TrainResult result = s.train("whole", how);
  EXPECT_EQ(result.step, 6);
  EXPECT_NE(result.stopped.find("early stopping: no improvement of valid_loss in "),
            std::string::npos)
      << result.stopped;
  EXPECT_EQ(checkpoint_steps(s.run("whole")).back(), 6);
  const std::vector<Json> log = lines_of(s.run("whole"));
  EXPECT_EQ(log.back()["step"], 6);
  EXPECT_EQ(log.back()["stopped"], result.stopped);
  for (const int64_t cut : {1, 3, 4, 5}) {
    const std::string name = fmt::format("cut{}", cut);
    EXPECT_EQ(s.train_cut(name, cut, how).step, 6) << cut;
    EXPECT_EQ(lines_of(s.run(name)), log) << cut;
    EXPECT_TRUE(model_of(s.run(name)) == model_of(s.run("whole"))) << cut;
  }
  // it has ended, but may go on under another rule, as if it had not
  EXPECT_EQ(s.train("whole", how, {.resume = true}).step, 6);
  EXPECT_FALSE(s.train("whole", how, {.resume = true}).last);
  EXPECT_EQ(s.train("whole", {"train.eval_every=2"}, {.resume = true}).step, 12);
  s.train("plain", {"train.eval_every=2"});
  EXPECT_TRUE(model_of(s.run("whole")) == model_of(s.run("plain")));
}

TEST(Ending, WhatItEndsWithIsMeasuredOnAllThatIsHeldOut) {
  const Setting s;
  const std::vector<std::string> how{"train.eval_every=2", "stop.reach=100",
                                     "train.eval_batches=1"};
  const TrainResult some = s.train("some", how);
  EXPECT_EQ(some.step, 2);
  const TrainResult all =
      s.train("all", {"train.eval_every=2", "stop.reach=100", "train.eval_batches=0"});
  EXPECT_EQ(some.last->valid_loss, all.last->valid_loss);
}

TEST(Ending, TheBestCheckpointsStay) {
  const Setting s;
  // a rate at which the loss goes up and down
  const std::vector<std::string> how{
      "train.eval_every=1", "train.steps=20",   "checkpoint.every=7",     "checkpoint.keep=1",
      "checkpoint.best=2",  "optimizer.lr=0.3", "schedule.type=constant", "train.eval_batches=0"};
  s.train("whole", how);
  std::vector<std::pair<double, int64_t>> order;
  for (const Json& line : lines_of(s.run("whole")))
    order.emplace_back(line["valid_loss"].get<double>(), line["step"].get<int64_t>());
  ASSERT_EQ(order.size(), 20u);
  std::sort(order.begin(), order.end());
  ASSERT_NE(order[0].second, 20);  // or it would be kept in any case
  const std::set<int64_t> stay{order[0].second, order[1].second, 20};
  const auto steps = checkpoint_steps(s.run("whole"));
  EXPECT_EQ(std::set<int64_t>(steps.begin(), steps.end()), stay);
  EXPECT_EQ(fs::read_symlink(s.run("whole") / "best").string(),
            fmt::format("step-{}", order[0].second));
  EXPECT_EQ(fs::read_symlink(s.run("whole") / "latest").string(), "step-20");
  for (const int64_t step : steps) verify_checkpoint(checkpoint_folder(s.run("whole"), step));
  for (const int64_t cut : {3, 10, 16}) {
    const std::string name = fmt::format("cut{}", cut);
    s.train_cut(name, cut, how);
    EXPECT_EQ(checkpoint_steps(s.run(name)), steps) << cut;
    EXPECT_EQ(lines_of(s.run(name)), lines_of(s.run("whole"))) << cut;
    EXPECT_EQ(read_text_file(s.run(name) / "best/model.safetensors"),
              read_text_file(s.run("whole") / "best/model.safetensors"));
  }
}

TEST(Ending, AKilledTrainersLinksAreMended) {
  const Setting s;
  const std::vector<std::string> how{"train.eval_every=2", "checkpoint.best=1"};
  s.train("a", how);
  const fs::path run = s.run("a"), best = fs::read_symlink(run / "best");
  for (const char* link : {"latest", "best"}) fs::remove(run / link);
  fs::create_directory_symlink("step-2", run / "latest");
  fs::create_directories(run / "step-9.old.partial");  // half removed
  s.train("a", how, {.resume = true});
  EXPECT_EQ(fs::read_symlink(run / "latest").string(), "step-12");
  EXPECT_EQ(fs::read_symlink(run / "best"), best);
  EXPECT_FALSE(fs::exists(run / "step-9.old.partial"));
}

TEST(Ending, RecipesThatCannot) {
  const Setting s;
  const auto refused = [&](const char* words, const std::vector<std::string>& overrides) {
    expect_error(ErrorKind::spec, words, [&] { read_recipe(s.json, "", overrides); });
  };
  refused("[stop.patience] given without train.eval_every",
          {"stop.patience=2", "train.eval_every=0"});
  refused("[checkpoint.best] given without validation data",
          {"checkpoint.best=1", "data.valid_fraction=0"});
  refused("stop", {"stop.patience=-1"});
  refused("did you mean \"patience\"", {"stop.patient=1"});
  expect_error(ErrorKind::spec, "[stop.metric] found \"bleu\"; expected one of valid_loss", [&] {
    s.train("a", {"stop.metric=bleu", "stop.patience=1"});
  });
}

TEST(Watching, WeightsThatAreNotFiniteAreNamedAndNotSaved) {
  const Setting s;
  expect_error(ErrorKind::input,
               "[train] step 1: \"embed.token.weight\" is not finite after the update", [&] {
                 s.train("a", {"train.steps=1", "optimizer.lr=3e38", "schedule.type=constant",
                               "schedule.warmup=0", "train.eval_every=0", "data.valid_fraction=0"});
               });
  EXPECT_TRUE(checkpoint_steps(s.run("a")).empty());
}

TEST(Watching, DivergenceNamesTheLayer) {
  const Setting s;
  const std::string what = test::error_of(ErrorKind::input, [&] {
    s.train("a", {"train.steps=400", "optimizer.lr=0.3", "schedule.type=constant",
                  "train.eval_every=0", "stop.diverged=0.02"});
  });
  EXPECT_NE(what.find("the loss diverges: its running mean is "), std::string::npos) << what;
  EXPECT_NE(what.find("the gradient is largest in \""), std::string::npos) << what;
}

TEST(Watching, ALossThatSpikesNamesTheLayer) {
  const Setting s;
  // one window of bytes that are nowhere else
  std::string text = counting_text(3000);
  for (int i = 0; i < 17; ++i)
    text[static_cast<size_t>(1500 + i)] = static_cast<char>(200 + 3 * i % 50);
  const std::string file = s.folder.write("odd.txt", text);
  s.train("a", {"data.train=[\"" + file + "\"]", "train.steps=400", "train.batch=1",
                "train.log_every=1000", "train.eval_every=0"});
  std::string warned;
  for (const Json& line : lines_of(s.run("a")))
    if (line.contains("warnings")) warned += line["warnings"].dump();
  EXPECT_NE(warned.find(" deviations above its mean "), std::string::npos) << warned;
  EXPECT_NE(warned.find("largest in \\\""), std::string::npos) << warned;
}

TEST(Watching, ExpertsWithoutTokensAreNamed) {
  Setting s;
  s.json["spec"]["ffn"] = json_of(R"({"type": "moe", "n_experts": 32,
      "expert": {"type": "glu", "d_hidden": 8}, "router": {"type": "top_k", "k": 1}})");
  // 64 tokens for 32 experts: of 32 even draws 4 get none
  s.train("a", {"train.steps=2", "watch.idle_experts=1", "train.eval_every=0"});
  std::string warned;
  for (const Json& line : lines_of(s.run("a")))
    if (line.contains("warnings")) warned += line["warnings"].dump();
  EXPECT_NE(warned.find("layers.0.ffn.router: expert"), std::string::npos) << warned;
  EXPECT_NE(warned.find(" of 32 got no token in 1 update"), std::string::npos) << warned;
}

TEST(Watching, LayersOfParameters) {
  EXPECT_EQ(layer_of("layers.3.mixer.q.weight"), "layers.3.mixer");
  EXPECT_EQ(layer_of("layers.3.mixer_norm.weight"), "layers.3.mixer_norm");
  EXPECT_EQ(layer_of("embed.token.weight"), "embed");
  EXPECT_EQ(layer_of("encoder.embed.token.weight"), "encoder.embed");
  EXPECT_EQ(layer_of("encoder.layers.11.ffn.up.weight"), "encoder.layers.11.ffn");
  EXPECT_EQ(layer_of("predictors.0.layers.0.ffn.up.weight"), "predictors.0.layers.0.ffn");
  EXPECT_EQ(layer_of("final_norm.weight"), "final_norm");
}

}  // namespace
}  // namespace tessera::train::ending_test
