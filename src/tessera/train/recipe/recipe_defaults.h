// Defaults that change gradients or samples. Torch-free.
#pragma once

#include <string>

#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

/// A line with those that the recipe's author has not set: clipping, decay, schedule, and the
/// objective's numbers; "" if there are none.
std::string defaults_in_force(const Recipe& recipe);

}  // namespace tessera::train
