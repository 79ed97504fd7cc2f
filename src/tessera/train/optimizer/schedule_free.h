// Schedule-free AdamW: weight averaging instead of a decaying learning rate. Torch-free, float32.
//   gradients are taken at y = (1 - b1) z + b1 x; x, the average, is what is evaluated and saved
//   v = b2 v + (1 - b2) g^2;  d = g / (sqrt(v / (1 - b2^t)) + eps) + wd y
//   z = z - lr d;  x = (1 - c) x + c z,  c = r^p / sum of r^p, r the largest rate so far
// Defazio et al. 2024, arXiv:2405.15682, in the form that keeps y as the weights, and z:
//   y = y + c (z - y) + lr (b1 (1 - c) - 1) d, before z moves;  x = y + (1 - 1 / b1) (z - y)
#pragma once

#include "tessera/train/optimizer/update_rule.h"

namespace tessera::train {

struct ScheduleFreeSettings {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_power = 2;
};

class ScheduleFree final : public UpdateRule {
 public:
  /// `weights`: initial values of the parameters and of z.
  ScheduleFree(std::vector<ParameterInfo> slots,
               ScheduleFreeSettings settings,
               std::span<const Parameter> weights);
  void update(std::span<const Parameter> parameters, const Step& step) override;
  std::vector<RuleState> state() override;
  bool averages() const override { return true; }
  void to_average(size_t slot, float* weights) const override;

 private:
  std::vector<ParameterInfo> slots_;
  ScheduleFreeSettings settings_;
  ElementChunks pieces_;
  Moments z_, v_;
  double sums_[2] = {0, 0};  // sum of the weights of updates; the largest rate
};

}  // namespace tessera::train
