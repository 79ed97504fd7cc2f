// Lion: steps of one length along the sign of an interpolated moment. Torch-free, float32.
//   w = (1 - lr wd) w - lr sign(b1 m + (1 - b1) g), sign(0) = 0;  m = b2 m + (1 - b2) g
// Chen et al. 2023, arXiv:2302.06675. One moment where AdamW has two.
#pragma once

#include "tessera/train/optimizer/update_rule.h"

namespace tessera::train {

class Lion final : public UpdateRule {
 public:
  Lion(std::vector<ParameterInfo> slots, double beta1, double beta2);
  void update(std::span<const Parameter> parameters, const Step& step) override;
  std::vector<RuleState> state() override;

 private:
  std::vector<ParameterInfo> slots_;
  double beta1_, beta2_;
  ElementChunks pieces_;
  Moments m_;
};

}  // namespace tessera::train
