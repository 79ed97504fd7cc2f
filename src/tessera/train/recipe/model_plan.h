// What the model and the objective of a run depend on. Torch-free.
#pragma once

#include "tessera/train/data/data_plan.h"

namespace tessera::train {

struct ExpertsRecipe;
struct InitRecipe;

/// The parts of a recipe that a run's initial model and its objective are made from and checked
/// against; refers to them. Optimizer, schedule and checkpoints are not among them.
struct ModelPlan : DataPlan {
  const InitRecipe* init = nullptr;        // null = newly initialized with train.seed
  const ExpertsRecipe* experts = nullptr;  // null = no changes of the experts
};

}  // namespace tessera::train
