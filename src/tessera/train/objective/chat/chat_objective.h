// The objective "chat" (supervised fine-tuning): answers of conversations and their end.
// Torch-free.
#pragma once

#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

ObjectiveKind chat_kind();

}  // namespace tessera::train
