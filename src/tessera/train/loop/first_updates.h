// Whether a run can learn at all, told by its first updates: a gradient near 0, parts that no
// gradient reaches, a rate that leaves the weights where they are.
#pragma once

#include <string>
#include <vector>

#include "tessera/train/loop/parameters.h"
#include "tessera/train/optimizer/schedule.h"

namespace tessera::train {

class FirstUpdates {
 public:
  /// Of a run of `steps` updates at the base rate `lr`.
  FirstUpdates(const Schedule& schedule, double lr, int64_t steps);

  /// Before an update, whose gradients are there: keeps some of the weights where it is needed.
  /// `loss` is that of the update's batch, `vocab` 0 where it is none of tokens.
  std::vector<std::string> before(int64_t step,
                                  const ParameterSet& parameters,
                                  double gradient_norm,
                                  double loss,
                                  int64_t vocab);
  /// Behind it.
  std::vector<std::string> after(int64_t step, const ParameterSet& parameters);

 private:
  double lr_;
  int64_t moving_ = 0;  // the first update whose rate is above 0
  double factors_ = 0;  // sum of the schedule's factors, over that of this update
  std::vector<std::vector<float>> samples_;
};

}  // namespace tessera::train
