// What a training run takes on a device, without that device: a step of the recipe on libtorch's
// meta device (ops/planned_memory.h), in the code that trains on a GPU.
#pragma once

#include <filesystem>

#include "tessera/base/cancel.h"
#include "tessera/model/memory_plan.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

/// A step of the recipe: forward and backward passes of its micro-batches, and the update. Texts
/// for next-token prediction are not read: a micro-batch is full windows of train.length tokens.
/// Other data are, to their first micro-batch; `cache`: folder of tokenized files, and `init` of an
/// adapter is loaded. `of`: whose forms of attention compute. What other models of the objective
/// (a teacher, a reference) take is in the weights. Throws the errors of the recipe's data.
model::MemoryPlan training_memory(const Recipe& recipe,
                                  const std::filesystem::path& cache,
                                  at::DeviceType of = at::kCUDA,
                                  const CancelToken* cancel = nullptr);

}  // namespace tessera::train
