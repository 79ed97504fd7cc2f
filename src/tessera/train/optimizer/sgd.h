// Gradient descent with momentum, as torch.optim.SGD. Torch-free, float32.
//   g = g + wd w;  b = g at the first update, else mu b + (1 - dampening) g
//   w = w - lr (g + mu b under nesterov, else b);  without momentum w = w - lr g
#pragma once

#include "tessera/train/optimizer/update_rule.h"

namespace tessera::train {

struct SgdSettings {
  double momentum = 0.9, dampening = 0;
  bool nesterov = false;
};

class Sgd final : public UpdateRule {
 public:
  Sgd(std::vector<ParameterInfo> slots, SgdSettings settings);
  void update(std::span<const Parameter> parameters, const Step& step) override;
  std::vector<RuleState> state() override;

 private:
  std::vector<ParameterInfo> slots_;
  SgdSettings settings_;
  ElementChunks pieces_, kept_;  // kept_: of the momentum, none where there is none
  Moments b_;
};

}  // namespace tessera::train
