#include <charconv>
#include <filesystem>
#include <map>
#include <optional>

#include "tessera/base/temporary_folder.h"
#include "tessera/base/threads.h"
#include "tessera/cli/amount.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/device_flag.h"
#include "tessera/cli/fit.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/out_place.h"
#include "tessera/cli/train_progress.h"
#include "tessera/model/plan.h"
#include "tessera/ops/device_memory.h"
#include "tessera/train/loop/find_batch.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/runs/run_report.h"
#include "tessera/train/loop/trainer.h"

namespace tessera::cli {
namespace {

struct TrainArgs {
  std::string recipe, out;
  std::vector<std::string> overrides, ignore_keys;
  std::string split;
  nn::SequenceSplit sequence = {};
  bool resume = false, json = false, find_batch = false, force = false;
  std::string memory;
  DeviceFlag device;
  int threads = 0;
};

/// "4" or "4:zigzag".
nn::SequenceSplit parse_split(const std::string& text) {
  const std::map<std::string, ops::RingLayout> layouts{{"ring", ops::RingLayout::contiguous},
                                                       {"zigzag", ops::RingLayout::zigzag},
                                                       {"striped", ops::RingLayout::striped}};
  nn::SequenceSplit split;
  const size_t colon = text.find(':');
  const auto layout = layouts.find(colon == std::string::npos ? "striped" : text.substr(colon + 1));
  const char *begin = text.data(), *end = begin + std::min(colon, text.size());
  const auto [stop, error] = std::from_chars(begin, end, split.ranks);
  if (error != std::errc() || stop != end || split.ranks < 1 || split.ranks > 1024 ||
      layout == layouts.end())
    fail(ErrorKind::usage, "train",
         "--sequence-parallel \"{}\"; expected a number of ranks up to 1024, and perhaps a layout: "
         "4:ring, 4:zigzag or 4:striped",
         text);
  split.layout = layout->second;
  return split;
}

/// Changes how many sequences a pass takes; a resumed run keeps what it has.
void find_batch(const TrainArgs& o, train::Recipe& recipe, at::Device device) {
  namespace fs = std::filesystem;
  const fs::path known = fs::path(o.out) / "recipe.json";
  if (o.resume && !o.out.empty() && fs::exists(known)) {
    const Json before = spec::read_json_file(known);
    const int64_t batch = before.at("train").at("batch"),
                  times = before.at("train").at("accumulate");
    if (batch * times == recipe.train.batch * recipe.train.accumulate) {
      recipe.train.batch = batch;
      recipe.train.accumulate = times;
      fmt::print(stderr, "resumed with train.batch = {}, train.accumulate = {}\n", batch, times);
      return;
    }
  }
  const int64_t there = train::available_bytes(device),
                budget =
                    o.memory.empty() ? ops::usable_memory(there) : bytes_of("--memory", o.memory);
  if (budget == 0)
    fail(ErrorKind::usage, "train", "free memory of {} is unknown; expected --memory",
         device.str());
  fmt::print(stderr, "effective batch size {}, memory limit {:.0f} MB:\n",
             recipe.train.batch * recipe.train.accumulate, static_cast<double>(budget) * 1e-6);
  std::optional<TemporaryFolder> own;
  std::optional<train::RunLock> lock;
  if (!o.out.empty()) lock.emplace(o.out);
  const train::BatchSearch search = train::find_batch(
      recipe, o.out.empty() ? own.emplace().path() : fs::path(o.out) / "cache", budget,
      [](const train::BatchTrial& trial) {
        fmt::print(stderr, "  micro-batch {:>5} x {:>4} accumulation steps  {:>8.0f} MB{}\n",
                   trial.batch, trial.accumulate, static_cast<double>(trial.bytes) * 1e-6,
                   trial.tried ? fmt::format("  {:>8.0f} tokens/s", trial.tokens_per_s)
                               : std::string("  estimated, not run"));
      },
      &cancel_token(), device);
  if (lock) lock->keep();
  recipe.train.batch = search.chosen.batch;
  recipe.train.accumulate = search.chosen.accumulate;
}

int train_model(const TrainArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  if (o.out.empty() && !o.find_batch)
    fail(ErrorKind::usage, "train", "--out is missing; expected the folder of the run");
  if (!o.memory.empty() && !o.find_batch)
    fail(ErrorKind::usage, "train", "--memory has no meaning without --find-batch");
  o.device.check();
  check_out_place("train", o.out, o.force, is_run_folder);
  std::vector<std::string> overrides = o.overrides;
  // a key of the recipe, so that the run's folder has it
  if (o.device.deterministic()) overrides.emplace_back("train.deterministic=true");
  train::Recipe recipe = train::load_recipe(o.recipe, overrides, o.ignore_keys);
  const at::Device device = o.device.device([&] { return training_bytes(recipe); });
  train::check_split(recipe.spec, recipe.train, o.sequence);
  if (o.find_batch) {
    find_batch(o, recipe, device);
    if (o.out.empty()) {
      if (o.json)
        print_json({{"batch", recipe.train.batch}, {"accumulate", recipe.train.accumulate}});
      else
        fmt::print("--set train.batch={} --set train.accumulate={}\n", recipe.train.batch,
                   recipe.train.accumulate);
      return kExitOk;
    }
  }
  const model::Plan plan = model::make_plan(recipe.spec, recipe.train.length);
  fmt::print(stderr, "{} parameters, {:.3g} GFLOP per token, {} steps of {} tokens\n",
             plan.parameters, 3 * plan.flops_per_token * 1e-9, recipe.train.steps,
             recipe.train.batch * recipe.train.length * recipe.train.accumulate);
  if (const std::string note = recipe.spec.selection_note(); !note.empty())
    fmt::print(stderr, "tessera: {}\n", note);
  for (const std::string& note : recipe.notes) fmt::print(stderr, "tessera: {}\n", note);
  TrainProgress progress(train::unit_of(recipe.objective->type()));
  train::TrainOptions options;
  options.resume = o.resume;
  options.sequence = o.sequence;
  options.device = device;
  options.cancel = &cancel_token();
  options.on_step = [&](const train::LogLine& line, int64_t steps) { progress(line, steps); };
  options.on_start = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  const train::TrainResult result = train::train(recipe, o.out, options);
  if (!result.stopped.empty())
    fmt::print(stderr, "tessera: stopped early at step {}: {}\n", result.step, result.stopped);
  if (o.json) {
    Json json = {{"step", result.step},
                 {"seconds", result.seconds},
                 {"checkpoint", result.checkpoint.string()}};
    if (!result.stopped.empty()) json["stopped"] = result.stopped;
    if (result.last) {
      json["loss"] = result.last->loss;
      if (result.last->valid_loss) json["valid_loss"] = *result.last->valid_loss;
      if (result.last->accuracy) json["accuracy"] = *result.last->accuracy;
      if (!result.last->scores.empty()) json["scores"] = result.last->scores;
    }
    print_json(json);
  } else {
    fmt::print("{}\n", result.checkpoint.string());
  }
  return kExitOk;
}

}  // namespace

std::function<int()> add_train(CLI::App& app) {
  auto o = std::make_shared<TrainArgs>();
  group(app, "Run");
  app.add_option("recipe", o->recipe, "training recipe (JSON)")->required();
  add_out(app, o->out, "run folder: checkpoints, log.jsonl, log.csv, TensorBoard events",
          "--output-dir");
  add_force(app, o->force);
  app.add_flag("--resume", o->resume, "resume from the newest checkpoint of --out, bit for bit");
  add_overrides(app, o->overrides, "recipe");
  add_ignore_key(app, o->ignore_keys);
  app.add_flag("--json", o->json, "result as JSON");
  group(app, "Batch size and memory");
  app.add_flag("--find-batch", o->find_batch,
               "find the largest micro-batch that fits --memory; gradient accumulation keeps the "
               "batch size. Without --out only this");
  app.add_option(
      "--memory", o->memory,
      "memory limit of --find-batch, such as 8G; without it four fifths of free memory, on a "
      "GPU of the GPU's");
  group(app, "Parallelism");
  auto* split = app.add_option("--sequence-parallel", o->split,
                               "sequence parallelism (ring attention) over P simulated ranks: P or "
                               "P:ring, P:zigzag, P:striped");
  o->device.add(app);
  add_threads(app, o->threads);
  examples(app,
           {"tessera train examples/recipes/shakespeare.json --out out/shakespeare",
            "tessera train recipe.json --out run --resume",
            "tessera train recipe.json --find-batch --memory 8G",
            "tessera train recipe.json --out run --sequence-parallel 4:striped",
            "tessera train recipe.json --out run --set train.steps=100 --set optimizer.lr=3e-4"});
  return [o, split] {
    if (split->count() > 0) o->sequence = parse_split(o->split);
    return train_model(*o);
  };
}

}  // namespace tessera::cli
