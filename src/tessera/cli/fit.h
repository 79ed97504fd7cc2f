// What a training run takes on a device, for --device auto.
#pragma once

#include "tessera/base/temporary_folder.h"
#include "tessera/cli/cli.h"
#include "tessera/train/loop/memory_plan.h"

namespace tessera::cli {

/// As `tessera plan` counts it (train/loop/memory_plan.h). Without activations where they cannot be
/// counted.
inline int64_t training_bytes(const train::Recipe& recipe) {
  const TemporaryFolder cache;
  return train::training_memory(recipe, cache.path(), at::kCUDA, &cancel_token()).total();
}

}  // namespace tessera::cli
