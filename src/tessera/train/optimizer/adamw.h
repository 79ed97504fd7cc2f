// AdamW, and Adam. Torch-free, float32.
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w = (1 - lr wd) w - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// Loshchilov, Hutter 2019, arXiv:1711.05101; where decay is coupled (Adam, Kingma, Ba 2014,
// arXiv:1412.6980), g is g + wd w instead, and nothing is taken from w.
#pragma once

#include "tessera/train/optimizer/update_rule.h"

namespace tessera::train {

struct AdamWSettings {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  bool coupled = false;  // decay
};

/// What an update of Adam multiplies by, in the precision that it computes in.
struct AdamConstants {
  float beta1, rest1, beta2, rest2, keep, rate, root, eps, scale, decay;
  AdamConstants(const AdamWSettings& settings,
                const UpdateRule::Step& step,
                const ParameterInfo& slot);
};

class AdamW final : public UpdateRule {
 public:
  AdamW(std::vector<ParameterInfo> slots, AdamWSettings settings);

  void update(std::span<const Parameter> parameters, const Step& step) override;
  std::vector<RuleState> state() override;

 private:
  std::vector<ParameterInfo> slots_;
  AdamWSettings settings_;
  ElementChunks pieces_;
  Moments m_, v_;
};

}  // namespace tessera::train
