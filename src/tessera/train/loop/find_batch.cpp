#include "tessera/train/loop/find_batch.h"

#include <ATen/Parallel.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "tessera/base/resident.h"
#include "tessera/base/threads.h"
#include "tessera/ops/block_cache.h"
#include "tessera/train/loop/adapter.h"
#include "tessera/train/loop/loop.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

double megabytes(int64_t bytes) {
  return static_cast<double>(bytes) * 1e-6;
}

/// What the run would train; its values do not matter.
std::unique_ptr<TrainState> any_learner(const Recipe& recipe, Objective& objective) {
  if (recipe.adapter) {
    AdapterInit start = adapter_start(recipe);
    AuxiliaryParameters beside = objective.join(start.model);
    return std::make_unique<TrainState>(std::move(start.model), recipe.optimizer,
                                        std::move(start.adapters), std::move(beside));
  }
  model::Model model(recipe.spec, model::Weights::initial(recipe.spec, 0));
  AuxiliaryParameters beside = objective.join(model);
  return std::make_unique<TrainState>(std::move(model), recipe.optimizer,
                                      std::vector<model::WeightAdapter>(), std::move(beside));
}

void give_memory_back() {
  ops::release_block_cache();
  malloc_trim(0);
}

/// Two updates of at most two passes each: the gradients are there when the second one begins, and
/// blocks of memory are at hand. What the block cache keeps beside them counts too.
BatchTrial try_batch(const Recipe& recipe,
                     const fs::path& cache,
                     BatchTrial trial,
                     const CancelToken* cancel) {
  Recipe some = recipe;
  some.train.batch = trial.batch;
  some.train.accumulate = std::min<int64_t>(2, trial.accumulate);
  some.train.curriculum.steps = 0;  // the longest there will be
  some.watch.reset();
  give_memory_back();
  {
    const auto objective = open_objective(some, cache, cancel);
    TrainOptions options;
    options.cancel = cancel;
    Loop loop(some, cache, *objective, any_learner(some, *objective), options);
    loop.try_update();
    const auto begin = std::chrono::steady_clock::now();
    const int64_t tokens = loop.try_update();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    trial.tokens_per_s = static_cast<double>(tokens) / seconds.count();
    trial.bytes = resident_bytes();
    trial.tried = true;
  }
  give_memory_back();
  return trial;
}

}  // namespace

int64_t available_bytes() {
  int64_t out = 0;
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;)
    if (key == "MemAvailable:") {
      file >> out;
      out = out * 1024 + resident_bytes();
      break;
    }
  // "max" is no number
  int64_t limit = 0;
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"})
    if (std::ifstream group(path); group >> limit && limit > 0) out = std::min(out, limit);
  return out;
}

BatchSearch find_batch(const Recipe& recipe,
                       const fs::path& cache,
                       int64_t budget,
                       const std::function<void(const BatchTrial&)>& on_trial,
                       const CancelToken* cancel) {
  at::set_num_threads(thread_count());
  ops::use_block_cache();
  const int64_t sequences = recipe.train.batch * recipe.train.accumulate,
                least_passes = recipe.watch && recipe.watch->noise_scale > 0 ? 2 : 1;
  BatchSearch out;
  // memory by sequences of a pass: a straight line through the last two that are known
  int64_t before = 0, bytes_before = resident_bytes();
  std::optional<BatchTrial> last;
  for (int64_t batch = 1; batch <= sequences / least_passes; ++batch) {
    if (sequences % batch != 0) continue;
    BatchTrial trial{batch, sequences / batch, 0, 0, false};
    if (last) {
      const double each = static_cast<double>(std::max<int64_t>(0, last->bytes - bytes_before)) /
                          static_cast<double>(last->batch - before);
      trial.bytes =
          last->bytes + static_cast<int64_t>(each * static_cast<double>(batch - last->batch));
    }
    const bool too_much = last && trial.bytes > budget;
    if (!too_much) {
      if (last) before = last->batch, bytes_before = last->bytes;
      trial = try_batch(recipe, cache, trial, cancel);
      last = trial;
    }
    out.trials.push_back(trial);
    if (on_trial) on_trial(trial);
    if (trial.bytes > budget) break;
    out.chosen = trial;
  }
  if (out.chosen.batch == 0)
    fail(ErrorKind::input, "train",
         "one sequence of {} tokens takes {:.0f} MB in all, of {:.0f} MB: expected more memory, a "
         "shorter train.length, or \"train.recompute\": {{\"of\": \"layers\"}}",
         recipe.train.length, megabytes(out.trials.front().bytes), megabytes(budget));
  return out;
}

}  // namespace tessera::train
