// What the samples of a run depend on. Torch-free.
#pragma once

#include "tessera/model/model_spec.h"
#include "tessera/train/recipe/adapter_recipe.h"
#include "tessera/train/recipe/data_recipe.h"
#include "tessera/train/recipe/train_recipe.h"

namespace tessera::train {

/// The parts of a recipe that datasets are opened from; refers to them.
struct DataPlan {
  const model::ModelSpec& spec;
  const DataRecipe& data;
  const TrainRecipe& train;
  const AdapterRecipe* adapter = nullptr;  // null = the model is trained
};

}  // namespace tessera::train
