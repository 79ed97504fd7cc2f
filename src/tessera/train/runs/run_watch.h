// History of a run's losses, evaluations, experts and gradients: when it stops early
// on its own, the best checkpoints, what is warned of. Its state lies in the checkpoint, so
// that a resumed run ends and warns where one that was not cut does. Torch-free.
//
// Loss spikes: with the mean m and variance v of the losses so far, weighted by 0.98^age, a loss is
// one where it is above m + spike sqrt(v), from 50 updates on. What is above counts as that bound,
// so that one spike does not hide the next.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/spec/json.h"
#include "tessera/train/recipe/watch_recipe.h"
#include "tessera/train/runs/run_log.h"

namespace tessera::train {

/// The value of a metric (StopRecipe::metric) in an evaluation; nullopt if it is not in it.
std::optional<double> value_of(const LogLine& line, const std::string& metric);
/// Whether `a` is better than `b` by more than `delta`: accuracies are to be large, losses small.
bool is_better(const std::string& metric, double a, double b, double delta = 0);

class RunWatch {
 public:
  /// `best`: how many of the best checkpoints are kept, by `best_metric`.
  RunWatch(StopRecipe stop, WatchRecipe watch, int64_t best, std::string best_metric);

  /// An evaluation, in `line`. Throws Error(spec) where it lacks a metric that is compared.
  void evaluated(const LogLine& line);
  /// Why the run ends here; "" = it continues.
  std::string stop_reason() const;
  /// Steps of the best checkpoints, the best one first.
  const std::vector<int64_t>& best_steps() const { return best_steps_; }

  struct Spike {
    double loss, mean, deviations;
  };
  /// The loss of the next update: what it is where it is a spike.
  std::optional<Spike> spike(double loss);
  /// Where the running mean has come too far above its least: how far.
  struct Divergence {
    double mean, least;
    int64_t least_step;
  };
  std::optional<Divergence> divergence(int64_t step);

  /// How often an update chose the experts of a router; a warning about those that have had no
  /// token for that long just now, "" = none.
  std::string expert_loads(const std::string& router, const std::vector<double>& loads);
  /// Experts were added or removed: the counts restart.
  void forget_experts() { idle_.clear(); }

  spec::Json to_json() const;
  /// Throws Error(file) that begins with `where` when it is not such a state.
  void restore(const spec::Json& json, const std::string& where);

 private:
  StopRecipe stop_;
  WatchRecipe watch_;
  int64_t best_ = 0;
  std::string best_metric_;

  std::optional<double> least_;  // the best value of the metric that stops
  double last_ = 0;              // the newest
  int64_t waited_ = 0;           // evaluations since the best
  int64_t best_at_ = 0;          // step of it
  std::vector<int64_t> best_steps_;
  std::vector<double> best_values_;

  double mean_ = 0, variance_ = 0;  // of losses
  int64_t losses_ = 0;
  std::optional<double> least_mean_;
  int64_t least_step_ = 0;

  std::map<std::string, std::vector<int64_t>> idle_;  // updates without a token, by router
};

}  // namespace tessera::train
