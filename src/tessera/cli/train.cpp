#include <charconv>
#include <map>

#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/train_progress.h"
#include "tessera/model/plan.h"
#include "tessera/train/trainer.h"

namespace tessera::cli {
namespace {

struct TrainArgs {
  std::string recipe, out;
  std::vector<std::string> overrides;
  std::string split;
  nn::SequenceSplit sequence = {};
  bool resume = false, json = false;
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

int train_model(const TrainArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  const train::Recipe recipe = train::load_recipe(o.recipe, o.overrides);
  train::check_split(recipe, o.sequence);
  const model::Plan plan = model::make_plan(recipe.spec, recipe.train.length);
  fmt::print(stderr, "{} parameters, {:.3g} GFLOP a token, {} steps of {} tokens\n",
             plan.parameters, 3 * plan.flops_per_token * 1e-9, recipe.train.steps,
             recipe.train.batch * recipe.train.length * recipe.train.accumulate);
  if (const std::string note = recipe.spec.selection_note(); !note.empty())
    fmt::print(stderr, "tessera: {}\n", note);
  for (const std::string& note : recipe.notes) fmt::print(stderr, "tessera: {}\n", note);
  TrainProgress progress(unit_of(recipe));
  train::TrainOptions options;
  options.resume = o.resume;
  options.sequence = o.sequence;
  options.cancel = &cancel_token();
  options.on_step = [&](const train::LogLine& line, int64_t steps) { progress(line, steps); };
  options.on_start = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  const train::TrainResult result = train::train(recipe, o.out, options);
  if (o.json) {
    Json json = {{"step", result.step},
                 {"seconds", result.seconds},
                 {"checkpoint", result.checkpoint.string()}};
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
  app.add_option("recipe", o->recipe, "what to train, on what, how long: JSON")->required();
  app.add_option("--out", o->out,
                 "the run's folder: log.jsonl, log.csv, events for TensorBoard, "
                 "checkpoints")
      ->required();
  app.add_flag("--resume", o->resume, "go on from the newest checkpoint there, bit for bit");
  app.add_option("--set", o->overrides, "path.to.key=value, changes the recipe first");
  auto* split = app.add_option("--sequence-parallel", o->split,
                               "attention by so many ranks of a ring, simulated in this process; P "
                               "or P:ring|zigzag|striped");
  app.add_option("--threads", o->threads, "0 = all cores")->check(CLI::Range(0, 4096));
  app.add_flag("--json", o->json, "the result as JSON");
  examples(app,
           {"tessera train examples/recipes/shakespeare.json --out out/shakespeare",
            "tessera train recipe.json --out run --resume",
            "tessera train recipe.json --out run --sequence-parallel 4:striped",
            "tessera train recipe.json --out run --set train.steps=100 --set optimizer.lr=3e-4"});
  return [o, split] {
    if (split->count() > 0) o->sequence = parse_split(o->split);
    return train_model(*o);
  };
}

}  // namespace tessera::cli
