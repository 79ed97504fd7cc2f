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
#include "tessera/ops/device_memory.h"
#include "tessera/train/loop/loop.h"
#include "tessera/train/loop/trial_steps.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

double megabytes(int64_t bytes) {
  return static_cast<double>(bytes) * 1e-6;
}

void give_memory_back(at::Device device) {
  ops::reset_peak_memory(device);
  ops::release_block_cache();
  malloc_trim(0);
}

/// Bytes on the host now, or on a device at most since give_memory_back().
int64_t bytes_used(at::Device device) {
  return device.is_cpu() ? resident_bytes() : ops::peak_memory(device).value_or(0);
}

/// Bytes of what an update leaves behind: weights, gradients and moments.
int64_t bytes_kept(at::Device device) {
  give_memory_back(device);
  return bytes_used(device);
}

struct Tried {
  BatchTrial trial;
  int64_t kept = 0;  // bytes that do not depend on the batch
};

/// Two updates of at most two micro-batches each: in the second one, gradients exist and memory
/// blocks are cached. The block cache counts as used memory.
Tried try_batch(const Recipe& recipe,
                const fs::path& cache,
                BatchTrial trial,
                const CancelToken* cancel,
                at::Device device) {
  Tried out;
  Recipe some = recipe;
  some.train.batch = trial.batch;
  some.train.accumulate = std::min<int64_t>(2, trial.accumulate);
  some.train.curriculum.steps = 0;  // the final length
  some.watch.reset();
  give_memory_back(device);
  {
    const auto objective = open_objective(some, cache, cancel, device);
    TrainOptions options;
    options.cancel = cancel;
    options.device = device;
    Loop loop(some, cache, *objective, any_learner(some, *objective, device), options);
    loop.try_update();
    const auto begin = std::chrono::steady_clock::now();
    const int64_t tokens = loop.try_update();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    trial.tokens_per_s = static_cast<double>(tokens) / seconds.count();
    trial.bytes = bytes_used(device);
    trial.tried = true;
    out.kept = bytes_kept(device);
  }
  give_memory_back(device);
  out.trial = trial;
  return out;
}

}  // namespace

int64_t available_bytes(at::Device device) {
  if (!device.is_cpu()) {
    const std::optional<ops::DeviceMemory> memory = ops::memory_of(device);
    return memory ? memory->free : 0;
  }
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
                       const CancelToken* cancel,
                       at::Device device) {
  if (!device.is_cpu() && !ops::peak_memory(device))
    fail(ErrorKind::usage, "device",
         "{}: the memory that it uses is unknown; expected train.batch without --find-batch, or "
         "device cpu",
         device.str());
  at::set_num_threads(thread_count());
  ops::use_block_cache();
  const int64_t sequences = recipe.train.batch * recipe.train.accumulate,
                least_passes = recipe.watch && recipe.watch->noise_scale > 0 ? 2 : 1;
  BatchSearch out;
  // memory as a linear function of the sequences, through the last two measurements; no sequence at
  // all takes what the first trial kept between its updates
  int64_t before = 0, bytes_before = 0;
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
      const Tried tried = try_batch(recipe, cache, trial, cancel, device);
      if (!last) bytes_before = tried.kept;
      trial = tried.trial;
      last = trial;
    }
    out.trials.push_back(trial);
    if (on_trial) on_trial(trial);
    if (trial.bytes > budget) break;
    out.chosen = trial;
  }
  if (out.chosen.batch == 0)
    fail(ErrorKind::input, "train",
         "one sequence of {} tokens takes {:.0f} MB, of {:.0f} MB: expected more memory, a "
         "shorter train.length, or \"train.recompute\": {{\"of\": \"layers\"}}",
         recipe.train.length, megabytes(out.trials.front().bytes), megabytes(budget));
  return out;
}

}  // namespace tessera::train
