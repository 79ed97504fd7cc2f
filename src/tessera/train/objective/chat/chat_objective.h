// The objective "chat" (supervised fine-tuning): answers of conversations and their end.
// Torch-free.
#pragma once

#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

std::vector<ObjectiveKind> chat_kinds();

}  // namespace tessera::train
