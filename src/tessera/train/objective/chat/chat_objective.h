// The objective "chat": answers of conversations, and to end them. Torch-free.
#pragma once

#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

ObjectiveKind chat_kind();

}  // namespace tessera::train
