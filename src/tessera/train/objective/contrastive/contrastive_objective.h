// The objective "contrastive": embeddings of related texts. Torch-free.
#pragma once

#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

std::vector<ObjectiveKind> contrastive_kinds();

}  // namespace tessera::train
