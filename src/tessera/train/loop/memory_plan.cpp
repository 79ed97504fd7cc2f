#include "tessera/train/loop/memory_plan.h"

#include <algorithm>

#include "tessera/ops/planned_memory.h"
#include "tessera/train/loop/loop.h"
#include "tessera/train/loop/trial_steps.h"
#include "tessera/train/objective/objective_config.h"

namespace tessera::train {
namespace {

/// Windows without a gap: every token has a target.
class FullWindows final : public Dataset {
 public:
  explicit FullWindows(int64_t length) : length_(length) {}
  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>& begun) const override {
    PackedBatch out;
    for (int64_t row = 0; row < count; ++row) {
      out.pieces.push_back({row, row * length_, length_});
      begun.push_back(row);
    }
    out.ids.assign(static_cast<size_t>(count * length_), 0);
    out.targets = out.ids;
    out.goes_on.assign(static_cast<size_t>(count), false);
    out.n_targets = count * length_;
    out.first_sample = first;
    return out;
  }
  int64_t valid_samples() const override { return 0; }
  PackedBatch valid(const std::vector<int64_t>&) const override { return {}; }
  double tokens_per_byte() const override { return 0; }
  const std::string& key() const override { return key_; }

 private:
  int64_t length_;
  std::string key_ = "full windows";
};

std::unique_ptr<Objective> objective_of(const Recipe& recipe,
                                        const std::filesystem::path& cache,
                                        const CancelToken* cancel) {
  if (recipe.objective->type() == next_token_objective()->type())
    return token_objective(recipe.data_plan(), *recipe.objective,
                           std::make_unique<FullWindows>(recipe.train.length));
  return open_objective(recipe, cache, cancel, at::kMeta);
}

int64_t bytes_of(const Tensor& tensor) {
  return ops::PlannedMemory::block(static_cast<int64_t>(tensor.nbytes()));
}

}  // namespace

model::MemoryPlan training_memory(const Recipe& recipe,
                                  const std::filesystem::path& cache,
                                  at::DeviceType of,
                                  const CancelToken* cancel) {
  Recipe some = recipe;
  some.watch.reset();
  some.train.curriculum.steps = 0;  // the final length
  model::MemoryPlan plan;
  ops::PlannedMemory memory(of);
  const int64_t before = memory.bytes();
  const auto objective = objective_of(some, cache, cancel);
  std::unique_ptr<TrainState> made = any_learner(some, *objective, at::kMeta);
  TrainState& state = *made;
  for (const Optimizer::StateTensor& tensor : state.optimizer->state()) {
    if (tensor.tensor.is_cpu()) continue;
    (tensor.name.starts_with("average.") ? plan.average : plan.optimizer) +=
        bytes_of(tensor.tensor);
  }
  plan.weights = memory.bytes() - before - plan.optimizer - plan.average;
  for (const ParameterSet::Entry& entry : state.parameters.trained())
    plan.gradients += bytes_of(entry.tensor);
  model::plan_calls(plan, [&] {
    TrainOptions options;
    options.cancel = cancel;
    options.device = at::kMeta;
    Loop loop(some, cache, *objective, std::move(made), options);
    memory.reset_peak();
    loop.try_pass();
    // the second micro-batch adds to gradients that are there
    if (some.train.accumulate > 1) loop.try_pass();
    state.optimizer->update(1, 0.5);
    plan.activations = std::max<int64_t>(
        0, memory.peak() - before - plan.weights - plan.optimizer - plan.average - plan.gradients);
  });
  return plan;
}

}  // namespace tessera::train
