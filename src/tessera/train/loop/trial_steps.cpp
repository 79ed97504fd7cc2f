#include "tessera/train/loop/trial_steps.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>

#include "tessera/base/threads.h"
#include "tessera/model/memory_plan.h"
#include "tessera/model/placement.h"
#include "tessera/ops/block_cache.h"
#include "tessera/train/loop/adapter.h"
#include "tessera/train/loop/loop.h"

namespace tessera::train {
namespace {

constexpr int64_t kMostRepeats = 50;

/// Seconds of one of what `run(n)` does n times, n at most `most`.
double median_seconds(const std::function<void(int64_t)>& run, int64_t most = kMostRepeats) {
  constexpr double kRepeatSeconds = 0.5;
  const auto seconds_of = [&](int64_t times) {
    const auto begin = std::chrono::steady_clock::now();
    run(times);
    const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
    return all.count() / static_cast<double>(times);
  };
  seconds_of(1);
  const double one = seconds_of(1);
  const auto times =
      static_cast<int64_t>(std::clamp(kRepeatSeconds / std::max(one, 1e-6), 1.0,
                                      static_cast<double>(std::min(most, kMostRepeats))));
  std::array<double, 3> repeats{};
  for (double& repeat : repeats) repeat = seconds_of(times);
  std::sort(repeats.begin(), repeats.end());
  return repeats[1];
}

}  // namespace

std::unique_ptr<TrainState> any_learner(const Recipe& recipe,
                                        Objective& objective,
                                        at::Device device) {
  if (recipe.adapter) {
    AdapterInit start = adapter_start(recipe.model_plan(), device);
    AuxiliaryParameters beside = objective.join(start.model);
    return std::make_unique<TrainState>(std::move(start.model), recipe.optimizer,
                                        std::move(start.adapters), std::move(beside));
  }
  model::Model model =
      device.is_meta()
          ? model::planned_model(recipe.spec)
          : model::to_device({recipe.spec, model::Weights::initial(recipe.spec, 0)}, device);
  AuxiliaryParameters beside = objective.join(model);
  return std::make_unique<TrainState>(std::move(model), recipe.optimizer,
                                      std::vector<model::WeightAdapter>(), std::move(beside));
}

TrialTimes trial_times(const Recipe& recipe,
                       const std::filesystem::path& cache,
                       const CancelToken* cancel,
                       at::Device device) {
  at::set_num_threads(thread_count());
  ops::use_block_cache();
  Recipe some = recipe;
  some.optimizer.lr = 1e-9;  // that no update diverges
  some.watch.reset();
  const auto objective = open_objective(some, cache, cancel, device);
  auto learner = any_learner(some, *objective, device);
  const model::Model& model = learner->model;
  TrainOptions options;
  options.cancel = cancel;
  options.device = device;
  Loop loop(some, cache, *objective, std::move(learner), options);
  TrialTimes times;
  times.update_seconds = median_seconds([&](int64_t updates) {
    for (int64_t i = 0; i < updates; ++i) {
      if (cancel != nullptr) cancel->check("train");
      loop.try_update();
    }
  });
  EvaluateOptions evaluate{.batch = some.train.batch, .cancel = cancel};
  times.passes =
      static_cast<int64_t>(passes_of(objective->source().valid_samples(), evaluate).size());
  if (times.passes > 0)
    times.pass_seconds = median_seconds(
        [&](int64_t passes) {
          evaluate.batches = passes;
          objective->evaluate(model, evaluate);
        },
        times.passes);
  return times;
}

}  // namespace tessera::train
