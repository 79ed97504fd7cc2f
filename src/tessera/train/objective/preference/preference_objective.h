// The objective "preference" (DPO and others): two answers to a prompt, one preferred. Torch-free.
#pragma once

#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

std::vector<ObjectiveKind> preference_kinds();

}  // namespace tessera::train
