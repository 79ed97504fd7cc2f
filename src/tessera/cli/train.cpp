#include <charconv>
#include <chrono>
#include <fstream>
#include <map>
#include <set>

#include <unistd.h>

#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
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

int64_t resident_megabytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE) >> 20;
}

/// One line that renews itself on a terminal; plain lines elsewhere.
class TrainProgress {
 public:
  void operator()(const train::LogLine& line, int64_t steps) {
    alarm(line);
    if (!line.expert_changes.empty())
      fmt::print(stderr, "{}tessera: step {}: {}\n", terminal_ ? "\n" : "", line.step,
                 train::text_of_changes(line.expert_changes));
    const bool last = line.step == steps, evaluated = line.valid_loss.has_value();
    const auto now = std::chrono::steady_clock::now();
    const double since = std::chrono::duration<double>(now - shown_).count();
    if (!last && !evaluated && since < (terminal_ ? 0.2 : 10.0)) return;
    shown_ = now;
    const double speed = line.tokens_per_s,
                 left = line.step > 0 ? line.seconds / static_cast<double>(line.step) *
                                            static_cast<double>(steps - line.step)
                                      : 0;
    std::string text = fmt::format(
        "step {:>6}/{}  loss {:.4f}  lr {:.2e}  {:>8.0f} tokens/s  {:>4.0f} s left  {} MB",
        line.step, steps, line.loss, line.lr, speed, left, resident_megabytes());
    if (evaluated)
      text += fmt::format("  valid {:.4f}  accuracy {:.3f}", *line.valid_loss,
                          line.accuracy.value_or(0));
    if (terminal_)
      fmt::print(stderr, "\r{:<120}{}", text, evaluated || last ? "\n" : "");
    else
      fmt::print(stderr, "{}\n", text);
    std::fflush(stderr);
  }

 private:
  /// Once for every router whose experts stay idle for a while; the log tells every step.
  void alarm(const train::LogLine& line) {
    constexpr int64_t kLong = 50;  // steps; the first ones of a run are uneven in any case
    std::map<std::string, int64_t> idle;
    for (const std::string& text : line.alarms) {
      const std::string router = text.substr(0, text.find(':'));
      const auto before = idle_.find(router);
      idle[router] = before == idle_.end() ? 1 : before->second + 1;
      if (idle[router] == kLong && told_.insert(router).second)
        fmt::print(stderr, "{}tessera: step {}: {}\n", terminal_ ? "\n" : "", line.step, text);
    }
    idle_ = std::move(idle);
  }

  std::map<std::string, int64_t> idle_;  // for how many steps, by router
  std::set<std::string> told_;
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  std::chrono::steady_clock::time_point shown_{};
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
  TrainProgress progress;
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
