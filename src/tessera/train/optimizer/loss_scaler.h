// Dynamic loss scaling for gradients in float16, for devices. Torch-free.
//
// Before the backward pass the loss is multiplied by scale(); afterwards gradients are divided by
// it in float32. If all are finite the update is applied, and after `growth` of these in a row the
// scale doubles; otherwise the update is skipped and the scale halves. A skipped update advances
// data and schedule, not the optimizer's count. As torch.amp.GradScaler, except that twenty skipped
// updates in a row, or a scale below 1, end the run: then a smaller scale does not help.
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
  /// Reports whether the gradients of an update are finite; returns whether it is applied. Throws
  /// Error(input) if the run cannot continue.
  bool update(bool finite);

  /// For checkpoints. restore() throws Error(file) naming `where` for invalid values.
  spec::Json to_json() const;
  void restore(const spec::Json& json, std::string_view where);

 private:
  double scale_;
  int64_t growth_, good_ = 0, skipped_ = 0;
};

}  // namespace tessera::train
