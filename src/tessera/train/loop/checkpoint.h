// Contents of a training checkpoint, which resumes a run bit for bit:
//   model.safetensors      parameters by name, as evaluated; metadata: "tessera_spec" (resolved
//                          spec, JSON), "tessera_tokenizer" ("bytes", or the name of a file or
//                          folder next to it), and for a run from a model its "tessera_origin"
//   adapter.safetensors    instead of it when an adapter is trained (infer/loading/adapter.h)
//   optimizer.safetensors  the optimizer's state; for AdamW first_moment.NAME,
//                          second_moment.NAME; with weight averaging, trained.NAME has the trained
//                          weights
//   objective.safetensors  parameters of the objective, if any
//   NAME/                  companion model of the objective, in a folder like this
//   trainer.json           counters and the recipe; random numbers follow from seed and counters
//   carried.safetensors    with train.windows "carried": recurrent states of the rows
// Folder, manifest and rename: run_folder.h.
#pragma once

#include "tessera/model/weight_adapter.h"
#include "tessera/train/experts/expert_changes.h"
#include "tessera/train/loop/tbptt.h"
#include "tessera/train/optimizer/optimizer.h"
#include "tessera/train/recipe/recipe.h"
#include "tessera/train/runs/run_log.h"

namespace tessera::train {

/// The progress of a run.
struct Progress {
  int64_t step = 0;    // number of updates
  int64_t sample = 0;  // sequences taken in data order
  int64_t tokens = 0;  // number of targets
  double seconds = 0;
  std::optional<LogLine> unreported =
      {};  // of `step`, if the run stopped before its evaluation and log line
  std::optional<RecurrentStates> carried = {};  // with train.windows "carried"
  ExpertCounts expert_counts = {};              // when experts are added or removed
  Json watch = {};                              // state of the run watch (run_watch.h)
  std::vector<int64_t> best = {};               // steps of checkpoints that are kept, best first
};

/// Empty states at the start of a run, one per sequence of an update; nullopt unless windows are
/// carried.
std::optional<RecurrentStates> fresh_rows(const model::ModelSpec& spec,
                                          const TrainRecipe& train,
                                          at::Device device);

/// Everything in a checkpoint except the progress.
struct RunState {
  const Recipe& recipe;  // whole: it is stored, and compared at resume
  const std::string& data_key;
  const model::Model& model;
  const ParameterSet& parameters;
  Optimizer& optimizer;
  const std::vector<model::WeightAdapter>& adapters;
  const AuxiliaryParameters& auxiliary;
  const format::StringMap& origin;  // metadata of the model's file
};

/// Writes a checkpoint into the folder `run` and returns its path. Throws Error(resource) and keeps
/// the older ones.
std::filesystem::path save_checkpoint(const std::filesystem::path& run,
                                      const RunState& state,
                                      const Progress& progress);

/// A line about what resuming `folder` with this recipe changes; "" for nothing. A run may have
/// more steps than before: then the learning-rate schedule of the new length, warm-up included,
/// applies from here on. Throws Error(spec) naming any other key that differs.
std::string check_resumed(const std::filesystem::path& folder, const Recipe& recipe);

/// Loads `folder` into model and optimizer. Throws Error(file) naming a damaged file, Error(spec)
/// naming the key if the recipe or the data differ from those of the checkpoint.
Progress load_checkpoint(const std::filesystem::path& folder, const RunState& state);

/// The spec of a checkpoint's model; differs from the recipe's if experts were added or removed.
model::ModelSpec spec_of(const std::filesystem::path& checkpoint);

/// Metadata of the model that the run was initialized from.
format::StringMap origin_of(const std::filesystem::path& checkpoint);

/// The model of a checkpoint, trainable or memory-mapped.
model::Model load_model(const std::filesystem::path& checkpoint, bool trainable = false);

}  // namespace tessera::train
