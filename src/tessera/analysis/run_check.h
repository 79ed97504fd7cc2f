// Checks of finished or running training runs (`tessera advise --check`): what the log, recipe and
// spec of a run say about its optimization, each finding with a rule and its source. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "tessera/analysis/advice.h"
#include "tessera/train/runs/run_report.h"

namespace tessera::analysis {

/// problem -> remedy, with at least one source. A page that is a source has the text cited from it.
struct CheckRule {
  std::string id, problem, remedy;
  std::vector<Evidence> evidence;
};

/// In the order of importance.
const std::vector<CheckRule>& check_rules();

struct Finding {
  const CheckRule* rule = nullptr;
  std::string run;    // its name; of a comparison of runs the first of them
  std::string found;  // with values
};

/// Findings of every run, and of learning rates over runs that differ in optimizer.lr and
/// train.seed alone, in the order of runs and rules.
std::vector<Finding> check_runs(const std::vector<train::RunRecord>& runs);

/// Table of docs/guide/choosing.md (cli/doc_tables.h).
std::string checks_markdown();

}  // namespace tessera::analysis
