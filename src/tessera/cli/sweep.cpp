#include <algorithm>
#include <filesystem>

#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/device_flag.h"
#include "tessera/cli/fit.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/train_progress.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/runs/sweep.h"

namespace tessera::cli {
namespace sweep_verb {

namespace fs = std::filesystem;

struct SweepArgs {
  DeviceFlag device;
  std::string recipe, out, number = "valid_loss";
  std::vector<std::string> grids, overrides, ignore_keys;
  int64_t seeds = 1;
  bool json = false, plan = false, verbose = false;
  int threads = 0;
};

struct Outcome {
  std::optional<double> reached = {};
  std::string failure = {};  // why it ended without a result
};

std::string number_text(double value) {
  return fmt::format("{:.4g}", value);
}

/// The numbers that evaluations of a run have, for a goal that none has.
std::string known_numbers(const train::RunRecord& run) {
  std::vector<std::string> names;
  for (const train::LogLine& line : run.lines) {
    if (line.valid_loss) names.emplace_back("valid_loss");
    if (line.accuracy) names.emplace_back("accuracy");
    for (const auto& [name, value] : line.scores) names.push_back(name);
  }
  names.emplace_back("loss");
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Trains one run, or resumes it, or finds it complete.
Outcome run_one(const SweepArgs& o,
                const train::SweepRun& run,
                const train::Recipe& recipe,
                const train::SweepGoal& goal) {
  const fs::path folder = fs::path(o.out) / run.name;
  TrainProgress progress(train::unit_of(recipe.objective->type()));
  train::TrainOptions options;
  options.resume = true;
  options.device = o.device.device([&] { return training_bytes(recipe); });
  options.cancel = &cancel_token();
  if (o.verbose)
    options.on_step = [&](const train::LogLine& line, int64_t steps) { progress(line, steps); };
  try {
    train::train(recipe, folder, options);
  } catch (const Error& error) {
    // a rate that diverges is a result of the sweep; what is wrong with recipe, file or disk is not
    if (error.kind() != ErrorKind::input) throw;
    return {.failure = error.what()};
  }
  const train::RunRecord record = train::read_runs({folder}).at(0);
  const std::optional<double> reached = train::reached(record, goal);
  if (!reached)
    fail(ErrorKind::usage, "sweep",
         "{} has no {}; expected one of {} (--metric), or train.eval_every", folder.string(),
         goal.number, known_numbers(record));
  return {.reached = reached};
}

Json json_of(const train::Sweep& sweep,
             const std::vector<train::SweepRow>& rows,
             const train::SweepGoal& goal,
             const std::vector<Outcome>& outcomes) {
  Json out{{"metric", goal.number}, {"greater_is_better", goal.greater}, {"rows", Json::array()}};
  for (const train::SweepRow& row : rows) {
    Json one{{"values", Json::object()}, {"runs", Json::array()}, {"finished", row.finished}};
    for (size_t k = 0; k < sweep.keys.size(); ++k) one["values"][sweep.keys[k]] = row.values[k];
    for (const std::optional<double>& value : row.reached)
      one["runs"].push_back(value ? Json(*value) : Json());
    one["mean"] = row.finished > 0 ? Json(row.mean) : Json();
    one["deviation"] = row.finished > 1 ? Json(row.deviation) : Json();
    out["rows"].push_back(std::move(one));
  }
  out["failed"] = Json::object();
  for (size_t i = 0; i < outcomes.size(); ++i)
    if (!outcomes[i].failure.empty()) out["failed"][sweep.runs[i].name] = outcomes[i].failure;
  return out;
}

void print_table(const train::Sweep& sweep,
                 const std::vector<train::SweepRow>& rows,
                 const train::SweepGoal& goal) {
  std::vector<std::vector<std::string>> cells;
  std::vector<std::string> head = sweep.keys;
  head.push_back(goal.number);
  if (sweep.seeds > 1) head.insert(head.end(), {"deviation", "runs"});
  cells.push_back(head);
  for (const train::SweepRow& row : rows) {
    std::vector<std::string> line = row.values;
    line.push_back(row.finished > 0 ? number_text(row.mean) : "failed");
    if (sweep.seeds > 1) {
      line.push_back(row.finished > 1 ? number_text(row.deviation) : "");
      line.push_back(fmt::format("{}/{}", row.finished, row.reached.size()));
    }
    cells.push_back(std::move(line));
  }
  for (const std::vector<std::string>& line : cells) {
    std::string text;
    for (size_t c = 0; c < line.size(); ++c) {
      size_t width = 0;
      for (const auto& other : cells) width = std::max(width, other[c].size());
      text += fmt::format("{:<{}}  ", line[c], width);
    }
    fmt::print("{}\n", text.substr(0, text.find_last_not_of(' ') + 1));
  }
}

int sweep(const SweepArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  o.device.check();  // before the first run
  const train::Sweep sweep = train::plan_sweep(o.grids, o.seeds);
  const train::SweepGoal goal = train::goal_of(o.number);
  // all recipes are read before the first run begins
  std::vector<train::Recipe> recipes;
  for (const train::SweepRun& run : sweep.runs) {
    std::vector<std::string> overrides = o.overrides;
    overrides.insert(overrides.end(), run.overrides.begin(), run.overrides.end());
    recipes.push_back(train::load_recipe(o.recipe, overrides, o.ignore_keys));
  }
  if (o.plan) {
    for (const train::SweepRun& run : sweep.runs)
      fmt::print("{}  {}\n", run.name, fmt::join(run.overrides, " "));
    return kExitOk;
  }
  if (o.out.empty())
    fail(ErrorKind::usage, "sweep", "--out is missing; expected the folder for the runs");
  std::vector<Outcome> outcomes;
  for (size_t i = 0; i < sweep.runs.size(); ++i) {
    const train::SweepRun& run = sweep.runs[i];
    outcomes.push_back(run_one(o, run, recipes[i], goal));
    const Outcome& outcome = outcomes.back();
    fmt::print(stderr, "run {}/{}  {}  {}\n", i + 1, sweep.runs.size(), run.name,
               outcome.reached ? fmt::format("{} {}", goal.number, number_text(*outcome.reached))
                               : "failed: " + outcome.failure);
    std::fflush(stderr);
  }
  std::vector<std::optional<double>> values;
  for (const Outcome& outcome : outcomes) values.push_back(outcome.reached);
  const std::vector<train::SweepRow> rows = train::sweep_rows(sweep, values, goal);
  if (o.json)
    print_json(json_of(sweep, rows, goal, outcomes));
  else
    print_table(sweep, rows, goal);
  const train::SweepRow& best = rows.front();
  if (best.finished == 0)
    fail(ErrorKind::input, "sweep", "no run finished: {}", outcomes.front().failure);
  std::string values_text;
  for (size_t k = 0; k < sweep.keys.size(); ++k)
    values_text += fmt::format("{}{}={}", k > 0 ? " " : "", sweep.keys[k], best.values[k]);
  if (!sweep.keys.empty()) {
    fmt::print(stderr, "best: {}\n", values_text);
    for (const std::string& note : train::sweep_notes(sweep, best))
      fmt::print(stderr, "tessera: {}\n", note);
  }
  return kExitOk;
}

}  // namespace sweep_verb

std::function<int()> add_sweep(CLI::App& app) {
  auto o = std::make_shared<sweep_verb::SweepArgs>();
  group(app, "Run");
  app.add_option("recipe", o->recipe, "training recipe (JSON)")->required();
  add_texts(app, "--grid", o->grids,
            "hyperparameter grid: KEY=a,b,c; repeat for every combination of several keys");
  app.add_option("--seeds", o->seeds, "runs per combination, with train.seed 1 to N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  add_out(app, o->out, "folder for the run folders; the same command resumes an interrupted sweep");
  add_overrides(app, o->overrides, "recipe");
  add_ignore_key(app, o->ignore_keys);
  group(app, "Output");
  app.add_option("--metric", o->number,
                 "what runs are compared by: valid_loss, loss, accuracy or another score of the "
                 "evaluation")
      ->capture_default_str();
  app.add_flag("--plan", o->plan, "list the runs, train nothing");
  app.add_flag("--json", o->json, "result as JSON: mean and standard deviation per combination");
  app.add_flag("--verbose,-v", o->verbose, "progress of every run");
  group(app, "Precision and performance");
  o->device.add(app);
  add_threads(app, o->threads);
  examples(
      app,
      {"tessera sweep recipe.json --grid optimizer.lr=1e-3,3e-3,1e-2 --seeds 3 --out sweep",
       "tessera sweep recipe.json --grid optimizer.lr=1e-3,3e-3 --grid train.batch=8,32 --plan",
       "tessera runs sweep --html sweep.html"});
  return [o] { return sweep_verb::sweep(*o); };
}

}  // namespace tessera::cli
