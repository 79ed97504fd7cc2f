// Trial updates of a recipe, to measure their time and memory; their results are discarded.
#pragma once

#include <filesystem>
#include <memory>

#include "tessera/train/loop/train_state.h"
#include "tessera/train/objective/objective.h"
#include "tessera/train/runs/trial_times.h"

namespace tessera::train {

/// The train state of a trial; values do not matter.
std::unique_ptr<TrainState> any_learner(const Recipe& recipe,
                                        Objective& objective,
                                        at::Device device = at::kCPU);

/// The times of a run: medians of 3 repeats of about half a second each (1 to 50 updates or
/// passes), after one that is not counted. `cache`: cache of tokenized files.
TrialTimes trial_times(const Recipe& recipe,
                       const std::filesystem::path& cache,
                       const CancelToken* cancel = nullptr,
                       at::Device device = at::kCPU);

}  // namespace tessera::train
