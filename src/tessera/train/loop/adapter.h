// An adapter to be trained, and the model that it stands beside, which stays as it is stored.
#pragma once

#include "tessera/model/weight_adapter.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

struct AdapterInit {
  model::Model model;                          // with the adapters on its weights
  std::vector<model::WeightAdapter> adapters;  // fresh, by train.seed
  std::string line;                            // how much of it trains
};

/// What the recipe's "adapter" says, beside the model of its "init": that of a Hugging Face folder,
/// a GGUF file or a run, mapped from its file, of whose weights no float copy is made. Throws
/// Error(usage) where a target names no matrix, Error(file) where that model's parameters are not
/// those of the recipe's spec.
AdapterInit adapter_start(const Recipe& recipe);

/// The model that a run begins from, as it stands before the first step: that which an adapter
/// stands beside, else one of start_weights().
model::Model start_model(const Recipe& recipe);

}  // namespace tessera::train
