// The objective "masked_lm": tokens of a text that are hidden in it. Torch-free.
#pragma once

#include "tessera/train/objective_config.h"

namespace tessera::train {

ObjectiveKind masked_lm_kind();

}  // namespace tessera::train
