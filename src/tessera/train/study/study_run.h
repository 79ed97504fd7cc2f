// Runs a study: times the models, searches their learning rates, trains every seed. What is done is
// not done again, what was interrupted is resumed.
//
//   OUT/times.json                     seconds of an update and of an evaluation of each entry
//   OUT/cache/                         tokens of the recipes' files
//   OUT/runs/NAME/search,lr=L,steps=N  a run of the search
//   OUT/runs/NAME/seed=S,lr=L,steps=N  a run that is compared
//   OUT/runs/NAME/part,seed=S,...      a run of a part of the budget, of a scaling law
//   OUT/size-N/                        such a folder for every size of a scaling law
// In a run's folder: failed.txt, why it ended without a result; blocks.json, EntryResult::blocks;
// lengths.json, EntryResult::lengths.
#pragma once

#include <filesystem>
#include <functional>

#include "tessera/train/loop/loop.h"
#include "tessera/train/study/layout_search.h"
#include "tessera/train/study/scaling_study.h"
#include "tessera/train/study/study_report.h"

namespace tessera::train {

struct StudyOptions {
  const CancelToken* cancel = nullptr;
  /// Takes a line after every run, and where something is reused.
  std::function<void(const std::string&)> say = {};
  /// TrainOptions::on_step of every run.
  std::function<void(const LogLine& line, int64_t steps)> on_step = {};
  /// TrainOptions::device of every run, and that of trial_times().
  at::Device device = at::kCPU;
  /// Measure times_of() first; without them the seconds of the result are 0.
  bool times = true;
  /// Folder of the tokens of the recipes' files; "" = OUT/cache.
  std::filesystem::path cache = {};
};

/// trial_times() of each entry; those of `out` are read, the rest is measured and saved there.
std::vector<TrialTimes> times_of(const Study& study,
                                 const std::filesystem::path& out,
                                 const StudyOptions& options = {});

/// What every entry reads, by seed: EntryFacts without rates.
std::vector<EntryFacts> orders_of(const Study& study,
                                  const std::filesystem::path& cache,
                                  const CancelToken* cancel = nullptr);

/// Throws what train() does, but for runs that diverge (Error(input)): those are results. A run
/// folder of another recipe throws Error(usage).
StudyResult run_study(const Study& study,
                      const std::filesystem::path& out,
                      const StudyOptions& options = {});

/// Runs every size of a scaling study in OUT/size-1, OUT/size-2, ..., then the parts of the budget
/// with the learning rates of the size. Throws what run_study() does.
ScalingResult run_scaling(const ScalingStudy& scaling,
                          const std::filesystem::path& out,
                          const StudyOptions& options = {});
/// What will run, and how long it takes.
std::string scaling_plan(const ScalingStudy& scaling,
                         const std::filesystem::path& out,
                         const StudyOptions& options = {});

/// Trains the candidates of a layout search by successive halving, then compares the best with the
/// baselines. Throws what run_study() does.
SearchResult run_search(const LayoutSearch& search,
                        const std::filesystem::path& out,
                        const StudyOptions& options = {});
/// What will run, and how long it takes: the mean time of at most 4 candidates counts for all.
std::string search_plan(const LayoutSearch& search,
                        const std::filesystem::path& out,
                        const StudyOptions& options = {});

}  // namespace tessera::train
