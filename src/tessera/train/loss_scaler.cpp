#include "tessera/train/loss_scaler.h"

#include "tessera/base/error.h"

namespace tessera::train {

bool LossScaler::update(bool finite) {
  constexpr int64_t kMostSkipped = 20;
  if (finite) {
    skipped_ = 0;
    if (++good_ == growth_) {
      scale_ *= 2;
      good_ = 0;
    }
    return true;
  }
  scale_ /= 2;
  good_ = 0;
  ++skipped_;
  if (skipped_ == kMostSkipped || scale_ < 1)
    fail(ErrorKind::input, "train",
         "gradients in float16 are not finite in {} updates in a row, the loss {} {} by now: lower "
         "optimizer.lr, or train in float32",
         skipped_, scale_ < 1 ? "divided by" : "multiplied by", scale_ < 1 ? 1 / scale_ : scale_);
  return false;
}

void LossScaler::restore(const State& state) {
  scale_ = state.scale;
  good_ = state.good;
  skipped_ = state.skipped;
}

}  // namespace tessera::train
