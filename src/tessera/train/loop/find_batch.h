// How many sequences one forward pass may take: the largest share of an update whose memory fits a
// budget. What is learned stays as it is, to rounding: an update has the same sequences, in more or
// fewer passes.
#pragma once

#include <filesystem>
#include <functional>

#include "tessera/base/cancel.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

/// What this process may hold of the memory that is there now, what it holds already included;
/// limits of its control group count. 0 where the system does not say.
int64_t available_bytes();

struct BatchTrial {
  int64_t batch = 0, accumulate = 0;
  int64_t bytes = 0;        // of the whole process
  double tokens_per_s = 0;  // 0 where it was not tried
  bool tried = false;       // else `bytes` goes on from smaller ones, and is above the budget
};

struct BatchSearch {
  std::vector<BatchTrial> trials;  // from small to large
  BatchTrial chosen;               // the largest within the budget
};

/// Makes updates of `recipe` that nobody keeps, with 1 sequence a pass and on; `cache` is where
/// tokens of its files are kept. What the next size takes is told from those before, so that a size
/// far above the budget is not tried. Throws Error(input) where one sequence is too much.
BatchSearch find_batch(const Recipe& recipe,
                       const std::filesystem::path& cache,
                       int64_t budget,
                       const std::function<void(const BatchTrial&)>& on_trial = {},
                       const CancelToken* cancel = nullptr);

}  // namespace tessera::train
