// The factor on a loss whose gradients are computed in float16, for devices: as large as it can be.
// Torch-free.
//
// Before the backward pass the loss is multiplied by scale(); behind it gradients are divided by it
// in float32. Where all are finite the update is made, and after `growth` of these in a row the
// scale doubles; else the update is left out and the scale halves. A left-out update advances data
// and schedule, not the optimiser's count. As torch.amp.GradScaler, but that twenty left out in a
// row, or a scale below 1, end the run: nothing that a smaller scale would help is wrong then.
#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/spec/json.h"

namespace tessera::train {

class LossScaler {
 public:
  explicit LossScaler(double scale = 65536, int64_t growth = 2000)
      : scale_(scale), growth_(growth) {}
  double scale() const { return scale_; }
  /// What the gradients of an update were; returns whether it is made. Throws Error(input) where
  /// the run cannot go on.
  bool update(bool finite);

  /// For checkpoints. Reading throws Error(file) naming `where` on what it cannot have written.
  spec::Json to_json() const;
  void restore(const spec::Json& json, std::string_view where);

 private:
  double scale_;
  int64_t growth_, good_ = 0, skipped_ = 0;
};

}  // namespace tessera::train
