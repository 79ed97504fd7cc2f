// Defaults that change gradients or samples. Torch-free.
#pragma once

#include <string>

#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

/// A line with those that a recipe's author has not written: clipping, decay, schedule, and the
/// numbers of the objective; "" where there are none.
std::string defaults_in_force(const Recipe& recipe);

}  // namespace tessera::train
