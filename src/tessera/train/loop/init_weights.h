// The first values of a run's parameters.
#pragma once

#include "tessera/model/model.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

/// What a run took from the model that it begins from.
struct InitReport {
  std::string from;
  int64_t kept = 0;                            // parameters with the model's values
  std::vector<std::string> newly_initialized;  // declared by the spec alone
  std::vector<std::string> unused_parameters;  // the model's alone
  std::string differs;  // the first key of the spec that the model has otherwise
  /// All of it, one thing a line.
  std::vector<std::string> lines() const;
};

/// Whether a parameter is of a head or a pooler, which "init.partial" may replace by one of another
/// shape.
bool is_of_head(const std::string& name);

struct StartWeights {
  model::Weights weights;
  std::optional<InitReport> report = {};  // where the recipe names a model
  format::StringMap origin = {};          // of that model (convert/checkpoint.h)
};

/// Float32 and trainable: those of the recipe's "init", else fresh ones. Throws Error(spec) that
/// names the first parameter of another shape, or, where "init.partial" is not set, the first that
/// the model lacks or that the spec does not declare; Error(file) for a model that cannot be read.
StartWeights start_weights(const Recipe& recipe);

}  // namespace tessera::train
