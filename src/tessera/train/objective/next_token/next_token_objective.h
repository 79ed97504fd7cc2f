// The next token of a text, the answer of a pair, what a task asks: what a recipe without an
// "objective" learns. Torch-free.
#pragma once

#include "tessera/train/data/dataset.h"
#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

/// By the spec and the data: "causal_lm", "prefix_lm", "seq2seq", or the name of the task.
ObjectivePtr default_objective(const Recipe& recipe);

/// Pairs of a source and its text, which is predicted from `recipe.spec.start` on.
std::unique_ptr<Dataset> pair_source(TokenData data,
                                     const Recipe& recipe,
                                     const LengthSchedule& ramp);

/// Throws Error(spec) where the spec cannot predict tokens.
void check_predicts_tokens(const Recipe& recipe);

}  // namespace tessera::train
