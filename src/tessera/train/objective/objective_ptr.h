// Pointer to the objective of a recipe. Torch-free.
#pragma once

#include <memory>

namespace tessera::train {

class ObjectiveConfig;
using ObjectivePtr = std::shared_ptr<const ObjectiveConfig>;

/// The default objective: next-token prediction.
ObjectivePtr next_token_objective();

}  // namespace tessera::train
