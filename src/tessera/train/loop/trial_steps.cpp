#include "tessera/train/loop/trial_steps.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "tessera/base/threads.h"
#include "tessera/ops/block_cache.h"
#include "tessera/train/loop/adapter.h"
#include "tessera/train/loop/loop.h"

namespace tessera::train {

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

double seconds_of_update(const Recipe& recipe,
                         const std::filesystem::path& cache,
                         const CancelToken* cancel) {
  at::set_num_threads(thread_count());
  ops::use_block_cache();
  Recipe some = recipe;
  some.optimizer.lr = 1e-9;  // that no update diverges
  some.watch.reset();
  const auto objective = open_objective(some, cache, cancel);
  TrainOptions options;
  options.cancel = cancel;
  Loop loop(some, cache, *objective, any_learner(some, *objective), options);
  const auto seconds_of = [&](int64_t updates) {
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < updates; ++i) {
      if (cancel != nullptr) cancel->check("train");
      loop.try_update();
    }
    const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
    return all.count() / static_cast<double>(updates);
  };
  constexpr double kRepeatSeconds = 0.5;
  constexpr int64_t kMostUpdates = 50;
  seconds_of(1);
  const double one = seconds_of(1);
  const auto updates = static_cast<int64_t>(
      std::clamp(kRepeatSeconds / std::max(one, 1e-6), 1.0, static_cast<double>(kMostUpdates)));
  std::array<double, 3> repeats{};
  for (double& repeat : repeats) repeat = seconds_of(updates);
  std::sort(repeats.begin(), repeats.end());
  return repeats[1];
}

}  // namespace tessera::train
