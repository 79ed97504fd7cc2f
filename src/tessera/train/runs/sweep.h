// Runs of one recipe over the values of some of its keys, with several seeds each, and what they
// reached. Torch-free.
//
//   const Sweep sweep = plan_sweep({"optimizer.lr=1e-3,3e-3"}, 3);
//   for (const SweepRun& run : sweep.runs) ...   // overrides, and a folder's name for each
//   const std::vector<SweepRow> rows = sweep_rows(sweep, reached, goal);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/train/runs/run_report.h"

namespace tessera::train {

struct SweepRun {
  std::string name;                    // of its folder: "lr=1e-3,seed=1"
  std::vector<std::string> overrides;  // "optimizer.lr=1e-3", ..., "train.seed=1"
  size_t row = 0;                      // which combination of values it is of
};

struct Sweep {
  std::vector<std::string> keys;                 // in the order of the grids
  std::vector<std::vector<std::string>> values;  // of each key
  std::vector<std::vector<std::string>> rows;    // combinations: a value for each key
  int64_t seeds = 1;
  std::vector<SweepRun> runs;  // a row's seeds one after another
};

/// Every combination of the values of `grids` ("key=a,b,c"; commas within brackets, braces and
/// quotes do not divide), each with seeds 1 to `seeds`; without grids the recipe as it is. Throws
/// Error(usage) for a grid without a key or a value, a key or value given twice, more than 10,000
/// runs.
Sweep plan_sweep(const std::vector<std::string>& grids, int64_t seeds);

/// What runs are compared by.
struct SweepGoal {
  std::string number = "valid_loss";  // of a line of the log: loss, valid_loss, accuracy, a score
  bool greater = false;               // whether more is better
};
/// A loss is better where it is less; all other numbers where they are greater. Throws Error(usage)
/// where no evaluated line of a run has that number: the message names those that there are.
SweepGoal goal_of(const std::string& number);

/// The best value of the goal's number over a run's evaluations; nothing where none has it.
std::optional<double> reached(const RunRecord& run, const SweepGoal& goal);

/// A combination of values with what its seeds reached.
struct SweepRow {
  std::vector<std::string> values;
  std::vector<std::optional<double>> reached;  // by seed; nothing = failed, or not yet run
  double mean = 0, deviation = 0;              // over those that there are; of a sample
  int64_t finished = 0;
};
/// The best first, those of which no run finished last; ties in the order of the grids. A row with
/// failed runs come after the others.
std::vector<SweepRow> sweep_rows(const Sweep& sweep,
                                 const std::vector<std::optional<double>>& reached,
                                 const SweepGoal& goal);

/// Where the best row lies at an end of a grid of numbers, which a better one may lie beyond: a
/// line for each such key.
std::vector<std::string> sweep_notes(const Sweep& sweep, const SweepRow& best);

}  // namespace tessera::train
