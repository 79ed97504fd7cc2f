// Norms by layer: of gradients before clipping, of weights, and of what an update changed in them.
#pragma once

#include "tessera/train/loop/parameters.h"

namespace tessera::train {

/// The part of a model that a parameter belongs to: "layers.3.mixer" of "layers.3.mixer.q.weight",
/// "encoder.embed" of "encoder.embed.token.weight".
std::string layer_of(const std::string& parameter);

/// The layer whose gradient is the largest, and its norm.
std::pair<std::string, double> largest_gradient(const ParameterSet& parameters,
                                                const std::vector<Gradient>& gradients);

/// The name of the first parameter that holds an infinity or NaN; "" = none does.
std::string first_nonfinite(const ParameterSet& parameters);

/// Made before an update, whose gradients are there; keeps a copy of the weights until it goes.
class GradientNorms {
 public:
  explicit GradientNorms(const ParameterSet& parameters);
  /// Behind the update: by layer {"gradient", "weight", "update"}, the weights as they are then.
  spec::Json after();

 private:
  const ParameterSet& parameters_;
  std::vector<std::vector<float>> before_;
};

}  // namespace tessera::train
