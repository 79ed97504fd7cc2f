// Measured times of the parts of a training run. Torch-free.
#pragma once

#include <cstdint>

namespace tessera::train {

struct TrialTimes {
  double update_seconds = 0;  // of an update
  double pass_seconds = 0;    // of an evaluation pass: train.batch validation samples
  int64_t passes = 0;         // of an evaluation of all validation data; 0 without validation data
};

}  // namespace tessera::train
