// What a checkpoint holds, so that a run continues bit for bit:
//   model.safetensors      parameters under their names, as they are evaluated; metadata
//   "tessera_spec" (resolved spec, JSON) and
//                          "tessera_tokenizer" ("bytes", or the name of a file or folder beside
//                          it); of a run that began from a model, its "tessera_origin"
//   adapter.safetensors    instead of it, where an adapter is trained (infer/loading/adapter.h)
//   optimizer.safetensors  the optimiser's state; of AdamW first_moment.NAME, second_moment.NAME;
//                          where an average is evaluated, what is trained as trained.NAME
//   objective.safetensors  where the objective has parameters of its own: these
//   NAME/                  where it trains a model beside: that one, in a folder like this
//   trainer.json           counters and the recipe; random numbers follow from seed and counters
//   carried.safetensors    where windows are carried: the states of the rows
// Folder, manifest and rename: run_folder.h.
#pragma once

#include "tessera/model/weight_adapter.h"
#include "tessera/train/experts/expert_changes.h"
#include "tessera/train/loop/tbptt.h"
#include "tessera/train/optimizer/optimizer.h"
#include "tessera/train/recipe/recipe.h"
#include "tessera/train/runs/run_log.h"

namespace tessera::train {

/// Where a run stands.
struct Progress {
  int64_t step = 0;    // updates made
  int64_t sample = 0;  // sequences taken from the order of the data
  int64_t tokens = 0;  // predicted
  double seconds = 0;
  std::optional<LogLine> unreported =
      {};  // of `step`, when the run stopped before it was evaluated and logged
  std::optional<RecurrentStates> carried = {};  // under train.windows "carried"
  ExpertCounts expert_counts = {};              // where experts come and go
  Json watch = {};                              // what the run remembers (run_watch.h)
  std::vector<int64_t> best = {};               // steps of checkpoints that stay, the best first
};

/// The rows that a run begins with: one per sequence of an update; none where windows are isolated.
std::optional<RecurrentStates> fresh_rows(const Recipe& recipe);

/// What a checkpoint is made of, besides where the run stands.
struct RunState {
  const Recipe& recipe;
  const std::string& data_key;
  const model::Model& model;
  const ParameterSet& parameters;
  Optimizer& optimizer;
  const std::vector<model::WeightAdapter>& adapters;
  const AuxiliaryParameters& beside;
  const format::StringMap& origin;  // metadata of the model's file
};

/// Writes a checkpoint into the folder `run`; returns its own. Throws Error(resource) and leaves
/// the older ones.
std::filesystem::path save_checkpoint(const std::filesystem::path& run,
                                      const RunState& state,
                                      const Progress& progress);

/// What resuming `folder` under this recipe changes, in a line; "" where nothing. A run may have
/// more steps than before: the learning-rate schedule of all of them, its warm-up included, applies
/// from there on. Throws Error(spec) that names another key by which the recipe differs.
std::string check_resumed(const std::filesystem::path& folder, const Recipe& recipe);

/// Reads `folder` into model and optimizer. Throws Error(file) for damage, naming the file, and
/// Error(spec) that names the key when the recipe, or the content of the data, is not the one the
/// checkpoint was made with.
Progress load_checkpoint(const std::filesystem::path& folder, const RunState& state);

/// What the model of a checkpoint is; experts that came or went tell it from the recipe's.
model::ModelSpec spec_of(const std::filesystem::path& checkpoint);

/// What a checkpoint says of the model that its run began from.
format::StringMap origin_of(const std::filesystem::path& checkpoint);

/// Weights of a checkpoint's model, trainable or mapped from its file.
model::Model load_model(const std::filesystem::path& checkpoint, bool trainable = false);

}  // namespace tessera::train
