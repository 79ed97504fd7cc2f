// Finds the largest micro-batch that fits a memory budget. Training results do not change, up to
// rounding: an update has the same sequences in more or fewer micro-batches.
#pragma once

#include <filesystem>
#include <functional>

#include "tessera/base/cancel.h"
#include "tessera/ops/tensor.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

/// Memory available to this process, bytes, including what it uses now; respects cgroup limits. On
/// another device than the CPU its free memory. 0 if system or device do not report it.
int64_t available_bytes(at::Device device = at::kCPU);

struct BatchTrial {
  int64_t batch = 0, accumulate = 0;
  int64_t bytes = 0;        // of the whole process; on another device than the CPU, at most on it
  double tokens_per_s = 0;  // 0 if not tried
  bool tried =
      false;  // otherwise `bytes` is extrapolated from smaller sizes and exceeds the budget
};

struct BatchSearch {
  std::vector<BatchTrial> trials;  // ascending sizes
  BatchTrial chosen;               // the largest within the budget
};

/// Runs trial updates of `recipe`, starting with 1 sequence per micro-batch, and discards them.
/// `cache`: cache of tokenized files. The memory of the next size is extrapolated, so sizes far
/// above the budget are not tried. Throws Error(input) if one sequence exceeds the budget,
/// Error(usage) for a device that does not report its memory.
BatchSearch find_batch(const Recipe& recipe,
                       const std::filesystem::path& cache,
                       int64_t budget,
                       const std::function<void(const BatchTrial&)>& on_trial = {},
                       const CancelToken* cancel = nullptr,
                       at::Device device = at::kCPU);

}  // namespace tessera::train
