// Initial parameters of a run.
#pragma once

#include "tessera/model/model.h"
#include "tessera/train/recipe/model_plan.h"

namespace tessera::train {

/// Which parameters a run took from the model in its "init".
struct InitReport {
  std::string from;
  int64_t kept = 0;                            // parameters with the model's values
  std::vector<std::string> newly_initialized;  // only in the recipe's spec
  std::vector<std::string> unused_parameters;  // only in the model
  std::string differs;                         // the first spec key that differs from the model's
  /// The report, one fact a line.
  std::vector<std::string> lines() const;
};

/// True for parameters of a head or pooler, which "init.partial" may initialize with another shape.
bool is_of_head(const std::string& name);

struct StartWeights {
  model::Weights weights;
  std::optional<InitReport> report = {};  // if the recipe names a model
  format::StringMap origin = {};          // metadata of that model (convert/checkpoint.h)
};

/// Float32, trainable: the weights of the plan's initial model, or newly initialized ones. Throws
/// Error(spec) naming the first parameter with another shape, or, without "init.partial", the first
/// that only the spec or only the model has; Error(file) for a model that cannot be read.
StartWeights start_weights(const ModelPlan& plan);

}  // namespace tessera::train
