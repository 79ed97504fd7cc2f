// Updates of a recipe that nobody keeps: what they take.
#pragma once

#include <filesystem>
#include <memory>

#include "tessera/train/loop/train_state.h"
#include "tessera/train/objective/objective.h"

namespace tessera::train {

/// What the run would train; its values do not matter.
std::unique_ptr<TrainState> any_learner(const Recipe& recipe, Objective& objective);

/// Seconds of an update: the median of 3 repeats of about half a second (1 to 50 updates each),
/// after one that is not counted. `cache` is where tokens of the recipe's files are kept.
double seconds_of_update(const Recipe& recipe,
                         const std::filesystem::path& cache,
                         const CancelToken* cancel = nullptr);

}  // namespace tessera::train
