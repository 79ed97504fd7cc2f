// The objective "contrastive": texts whose vectors are to lie near one another. Torch-free.
#pragma once

#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

ObjectiveKind contrastive_kind();

}  // namespace tessera::train
