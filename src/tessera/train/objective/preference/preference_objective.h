// The objective "preference": of two answers to a prompt, the one that was liked better.
// Torch-free.
#pragma once

#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

ObjectiveKind preference_kind();

}  // namespace tessera::train
