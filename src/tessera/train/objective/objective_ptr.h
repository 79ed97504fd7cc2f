// What a recipe holds of its objective. Torch-free.
#pragma once

#include <memory>

namespace tessera::train {

class ObjectiveConfig;
using ObjectivePtr = std::shared_ptr<const ObjectiveConfig>;

/// The next token of a text.
ObjectivePtr next_token_objective();

}  // namespace tessera::train
