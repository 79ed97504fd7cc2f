// Training from a recipe, and resuming it bit for bit.
//
//   const Recipe recipe = load_recipe("recipe.json", {"train.steps=200"});
//   train(recipe, "runs/a", {.resume = true});
//
// The run folder (run_folder.h) gets recipe.json (resolved), log.jsonl and log.csv (run_log.h),
// checkpoints step-N/ (checkpoint.h) and a cache of tokens. On one machine with one thread count, a
// run that was cut anywhere and resumed has the same parameters, moments and log lines (but for
// timings) as one that was not.
#pragma once

#include "tessera/train/loop/loop.h"

namespace tessera::train {

/// Throws Error where `split` finds no mixer "attention" to split (usage), one that cannot be split
/// (spec), or windows that are carried (usage).
void check_split(const Recipe& recipe, const nn::SequenceSplit& split);

/// Throws Error(usage) where the recipe asks for products in bf16 and the processor has no units
/// for them: without these they are slower than those in float32.
void check_precision(const Recipe& recipe, bool has_bf16_units);

/// Throws what check_split() and check_precision() do; Error(usage) when the folder holds
/// checkpoints and `resume` is not set; Error(resource) for a folder in use and a full disk (the
/// last checkpoint stays); Error(spec) naming the key by which a resumed recipe differs, more steps
/// excepted, before anything in the folder changes; Error(input) naming step and place when a loss
/// or gradient is not finite; Error(cancelled) after saving.
TrainResult train(const Recipe& recipe,
                  const std::filesystem::path& folder,
                  const TrainOptions& options = {});

}  // namespace tessera::train
