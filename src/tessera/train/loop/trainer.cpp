#include "tessera/train/loop/trainer.h"

#include <ATen/Parallel.h>

#include "tessera/base/cpu.h"
#include "tessera/base/threads.h"
#include "tessera/kernels/weights/gemm.h"
#include "tessera/model/placement.h"
#include "tessera/nn/mixer/attention/attention.h"
#include "tessera/ops/block_cache.h"
#include "tessera/ops/deterministic.h"
#include "tessera/train/loop/adapter.h"
#include "tessera/train/loop/init_weights.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/recipe/recipe_defaults.h"
#include "tessera/train/runs/run_folder.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

/// The attention mixers of a stack; each must support split sequences.
int64_t count_split(const model::ModelSpec& spec, int64_t longest) {
  int64_t count = 0;
  for (size_t i = 0; i < spec.layers.size(); ++i)
    for (const model::GroupSpec& group : spec.layers[i].groups)
      for (const model::BranchSpec& branch : group.branches) {
        const auto* attention = dynamic_cast<const nn::AttentionConfig*>(branch.part.config.get());
        if (attention == nullptr) continue;
        ++count;
        if (const std::string reason = attention->no_split_reason(longest); !reason.empty())
          fail(ErrorKind::spec, spec.under(fmt::format("layers.{}.{}", i, branch.name)), "{}",
               reason);
      }
  return count;
}

struct FirstModel {
  model::Model model;
  format::StringMap origin;
};

/// The initial model of a run. A resumed run gets the model of its newest checkpoint with any
/// values, which are loaded later, and does not need the initial model.
FirstModel first_model(const Recipe& recipe, const fs::path& folder, const TrainOptions& options) {
  const auto steps = checkpoint_steps(folder);
  if (!steps.empty()) {
    // experts may have been added or removed since the recipe's spec
    model::ModelSpec spec = recipe.experts && recipe.experts->changes()
                                ? spec_of(checkpoint_folder(folder, steps.back()))
                                : recipe.spec;
    auto weights = model::Weights::initial(spec, static_cast<uint64_t>(recipe.train.seed));
    return {{std::move(spec), std::move(weights)},
            origin_of(checkpoint_folder(folder, steps.back()))};
  }
  StartWeights start = start_weights(recipe.model_plan());
  if (start.report && options.on_start)
    for (const std::string& line : start.report->lines()) options.on_start(line);
  return {{recipe.spec, std::move(start.weights)}, std::move(start.origin)};
}

/// The train state of the run.
std::unique_ptr<TrainState> first_learner(const Recipe& recipe,
                                          Objective& objective,
                                          const fs::path& folder,
                                          const TrainOptions& options) {
  if (!recipe.adapter) {
    FirstModel first = first_model(recipe, folder, options);
    if (!options.device.is_cpu()) first.model = model::to_device(first.model, options.device);
    AuxiliaryParameters beside = objective.join(first.model);
    auto learner =
        std::make_unique<TrainState>(std::move(first.model), recipe.optimizer,
                                     std::vector<model::WeightAdapter>(), std::move(beside));
    learner->origin = std::move(first.origin);
    return learner;
  }
  AdapterInit start = adapter_start(recipe.model_plan(), options.device);
  if (options.on_start) options.on_start(start.line);
  AuxiliaryParameters beside = objective.join(start.model);
  return std::make_unique<TrainState>(std::move(start.model), recipe.optimizer,
                                      std::move(start.adapters), std::move(beside));
}

}  // namespace

void check_split(const model::ModelSpec& spec,
                 const TrainRecipe& train,
                 const nn::SequenceSplit& split) {
  if (split.ranks <= 1) return;
  if (train.windows == WindowOrder::carried)
    fail(ErrorKind::usage, "train",
         "the sequence is to be split over {} ranks, but train.windows \"carried\" continues from "
         "a state; expected \"isolated\", or leave --sequence-parallel out",
         split.ranks);
  int64_t found = count_split(spec, train.length);
  if (spec.encoder) found += count_split(*spec.encoder, train.length);
  if (found == 0)
    fail(ErrorKind::usage, "train",
         "the sequence is to be split over {} ranks, but no mixer is \"attention\"; leave "
         "--sequence-parallel out",
         split.ranks);
}

void check_precision(Precision precision, bool has_bf16_units) {
  if (precision == Precision::bf16 && !has_bf16_units)
    fail(ErrorKind::usage, "train.precision",
         "\"bf16\": this processor ({}) has no units for it that tessera uses (AVX512-BF16, AMX), "
         "or TESSERA_CPU forbids them; expected \"float32\"",
         cpu_info().model);
}

TrainResult train(const Recipe& recipe, const fs::path& folder, const TrainOptions& options) {
  check_split(recipe.spec, recipe.train, options.sequence);
  const ops::Deterministic deterministic(recipe.train.deterministic ? options.device : at::kCPU);
  if (recipe.train.precision == Precision::tf32 && options.device.is_cpu())
    fail(ErrorKind::usage, "train.precision",
         "\"tf32\" is for GPUs (--device cuda); expected \"float32\", \"bf16\" or \"fp16\" on the "
         "CPU");
  const ops::AllowTf32 tf32(recipe.train.precision == Precision::tf32);
  check_precision(recipe.train.precision, !options.device.is_cpu() || kernels::has_bf16_units());
  RunLock lock(folder);
  if (const auto steps = checkpoint_steps(folder); !steps.empty()) {
    if (!options.resume)
      fail(ErrorKind::usage, "train",
           "{} holds checkpoints up to step {}; resume that run (--resume), or choose another "
           "folder",
           folder.string(), steps.back());
    // before anything in the folder changes
    const std::string line = check_resumed(checkpoint_folder(folder, steps.back()), recipe);
    if (!line.empty() && options.on_start) options.on_start(line);
  }
  remove_partial_checkpoints(folder);
  if (recipe.train.threads > 0) set_thread_count(static_cast<int>(recipe.train.threads));
  at::set_num_threads(thread_count());
  ops::use_block_cache();

  std::unique_ptr<Objective> objective;
  std::unique_ptr<TrainState> learner;
  try {
    objective =
        open_objective(recipe, {.cache = options.cache.empty() ? folder / "cache" : options.cache,
                                .cancel = options.cancel,
                                .goes_on = !checkpoint_steps(folder).empty(),
                                .say = options.on_start,
                                .device = options.device});
    learner = first_learner(recipe, *objective, folder, options);
  } catch (const Error& error) {
    // cached tokens stay for the next start
    if (error.kind() == ErrorKind::cancelled) lock.keep();
    throw;
  }
  lock.keep();
  if (options.on_start) {
    if (const std::string line = defaults_in_force(recipe); !line.empty()) options.on_start(line);
    options.on_start("optimizer state: " + learner->optimizer->memory_text());
  }
  return Loop(recipe, folder, *objective, std::move(learner), options).run();
}

}  // namespace tessera::train
