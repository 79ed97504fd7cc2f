// Checks the first updates of a run for signs that it cannot learn: a gradient near 0, parameters
// without gradient, a learning rate that does not change the weights.
#pragma once

#include <string>
#include <vector>

#include "tessera/train/loop/parameters.h"
#include "tessera/train/optimizer/schedule.h"

namespace tessera::train {

class FirstUpdates {
 public:
  /// For a run of `steps` updates with base learning rate `lr`.
  FirstUpdates(const Schedule& schedule, double lr, int64_t steps);

  /// Call before an update, with its gradients; returns warnings, and copies some weights if
  /// necessary. `loss` is that of the batch; `vocab` is 0 for a loss that is not over tokens.
  std::vector<std::string> before(int64_t step,
                                  const ParameterSet& parameters,
                                  double gradient_norm,
                                  double loss,
                                  int64_t vocab);
  /// Call after the update; returns warnings.
  std::vector<std::string> after(int64_t step, const ParameterSet& parameters);

 private:
  double lr_;
  int64_t moving_ = 0;  // the first update with a learning rate above 0
  double factors_ = 0;  // sum of the schedule's factors relative to that of this update
  std::vector<std::vector<float>> samples_;
};

}  // namespace tessera::train
