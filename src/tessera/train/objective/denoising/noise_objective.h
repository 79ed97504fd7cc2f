// Self-supervised objectives (noise_recipe.h) and mixtures of them. Torch-free.
#pragma once

#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

std::vector<ObjectiveKind> noise_objective_kinds();

}  // namespace tessera::train
