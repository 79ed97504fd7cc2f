// Trains a recipe, and resumes a run bit for bit.
//
//   const Recipe recipe = load_recipe("recipe.json", {"train.steps=200"});
//   train(recipe, "runs/a", {.resume = true});
//
// The run folder (run_folder.h) gets recipe.json (resolved), log.jsonl and log.csv (run_log.h),
// checkpoints step-N/ (checkpoint.h) and a cache of tokens. On one machine with one thread count, a
// run that was interrupted anywhere and resumed has the same parameters, moments and log lines
// (except timings) as an uninterrupted one.
#pragma once

#include "tessera/train/loop/loop.h"

namespace tessera::train {

/// Throws Error if `split` finds no "attention" mixer to split (usage), one that cannot be split
/// (spec), or carried windows (usage).
void check_split(const model::ModelSpec& spec,
                 const TrainRecipe& train,
                 const nn::SequenceSplit& split);

/// Throws Error(usage) for bf16 products on a processor without bf16 units, where they are slower
/// than float32.
void check_precision(Precision precision, bool has_bf16_units);

/// Throws the errors of check_split() and check_precision(); Error(usage) if the folder has
/// checkpoints and `resume` is not set; Error(resource) for a folder in use and a full disk (the
/// last checkpoint stays); Error(spec) naming the key by which a resumed recipe differs, more steps
/// excepted, before anything in the folder changes; Error(input) with step and place if a loss or
/// gradient is not finite; Error(cancelled) after saving.
TrainResult train(const Recipe& recipe,
                  const std::filesystem::path& folder,
                  const TrainOptions& options = {});

}  // namespace tessera::train
