// What a model learns from labels (label_objective.h): losses of its classifier or span head, and
// scores of what is held out.
#pragma once

#include "tessera/train/objective/objective.h"

namespace tessera::train {

/// `source` is that of the recipe's objective.
std::unique_ptr<Objective> labelled_objective(const Recipe& recipe,
                                              std::unique_ptr<Dataset> source,
                                              const ObjectiveOptions& options = {});

}  // namespace tessera::train
