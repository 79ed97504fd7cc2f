// Next-token prediction: the default objective, for texts, targets of pairs, and tasks. Torch-free.
#pragma once

#include "tessera/train/data/dataset.h"
#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

/// By spec and data: "causal_lm", "prefix_lm", "seq2seq", or the name of the task.
ObjectivePtr default_objective(const model::ModelSpec& spec, const DataRecipe& data);

/// Pairs of a source and a target, which is predicted from `plan.spec.start` on.
std::unique_ptr<Dataset> pair_source(TokenData data,
                                     const DataPlan& plan,
                                     const LengthSchedule& ramp);

/// Throws Error(spec) if the spec cannot predict tokens. `type`: of the objective, for messages.
void check_predicts_tokens(const model::ModelSpec& spec, std::string_view type);

}  // namespace tessera::train
