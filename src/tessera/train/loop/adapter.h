// Adapter training (LoRA and others) on a frozen base model.
#pragma once

#include "tessera/model/weight_adapter.h"
#include "tessera/train/recipe/model_plan.h"

namespace tessera::train {

struct AdapterInit {
  model::Model model;                          // base model with the adapters on its weights
  std::vector<model::WeightAdapter> adapters;  // newly initialized with train.seed
  std::string line;                            // for people: number of trainable parameters
};

/// Creates the plan's adapter on its initial model: a Hugging Face folder, a GGUF file or
/// a run. On the CPU the base model stays memory-mapped, without a float copy of its weights.
/// Throws Error(usage) if a target matches no matrix, Error(file) if the model's parameters are not
/// those of the plan's spec.
AdapterInit adapter_start(const ModelPlan& plan, at::Device device = at::kCPU);

/// The model before the first step: the base model of an adapter, otherwise that of
/// start_weights().
model::Model start_model(const ModelPlan& plan);

}  // namespace tessera::train
