// The objective "contrastive": embeddings of related texts. Torch-free.
#pragma once

#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

ObjectiveKind contrastive_kind();

}  // namespace tessera::train
