// Norms by layer: of gradients before clipping, of weights, and of weight updates.
#pragma once

#include "tessera/train/loop/parameters.h"

namespace tessera::train {

/// The module of a parameter: "layers.3.mixer" for "layers.3.mixer.q.weight", "encoder.embed" for
/// "encoder.embed.token.weight".
std::string layer_of(const std::string& parameter);

/// The layer with the largest gradient norm, and that norm.
std::pair<std::string, double> largest_gradient(const ParameterSet& parameters);

/// The name of the first parameter with an infinity or NaN; "" = none.
std::string first_nonfinite(const ParameterSet& parameters);

/// Create it before an update, with its gradients; copies the weights.
class GradientNorms {
 public:
  explicit GradientNorms(const ParameterSet& parameters);
  /// Call after the update: by layer {"gradient", "weight", "update"}, with the weights of that
  /// time.
  spec::Json after();

 private:
  const ParameterSet& parameters_;
  std::vector<std::vector<float>> before_;
};

}  // namespace tessera::train
