// Supervised objectives on a model (label_objective.h): losses of its classifier or span head, and
// metrics of the validation samples.
#pragma once

#include "tessera/train/objective/objective.h"

namespace tessera::train {

/// `source`: that of the recipe's objective.
std::unique_ptr<Objective> labelled_objective(const ModelPlan& plan,
                                              const ObjectivePtr& objective,
                                              std::unique_ptr<Dataset> source,
                                              const ObjectiveOptions& options = {});

}  // namespace tessera::train
