// Self-check of `compare`: known results of the literature reappear on synthetic tasks, equal
// models differ by nothing, and planted unfairness is found. Every check is a study of its own
// (study_run.h): seconds to train, resumable.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/train/study/study_run.h"

namespace tessera::train {

/// A check and its outcome.
struct CheckLine {
  std::string name;        // "induction heads"
  std::string claim;       // what must hold, with its source
  std::string found = {};  // measured values with their limits
  bool passed = false;
  double seconds = 0;
};

struct SelfCheckOptions {
  /// Of every study; nothing is timed.
  StudyOptions study = {};
  /// Steps of every training, in place of those that a check needs.
  std::optional<int64_t> steps = {};
  /// Names of the checks to run; empty = all.
  std::vector<std::string> only = {};
  /// Called after every check.
  std::function<void(const CheckLine&)> done = {};
};

/// Names of all checks, in their order.
std::vector<std::string> self_check_names();
/// Seconds of all checks on 2 cores, as measured.
double self_check_seconds();

/// Runs the checks in subfolders of `folder`. Throws Error(usage) for an unknown name in `only`,
/// and what run_study() throws.
std::vector<CheckLine> self_check(const std::filesystem::path& folder,
                                  const SelfCheckOptions& options = {});

}  // namespace tessera::train
