// Muon: matrix updates along the nearest orthogonal matrix. Jordan et al. 2024,
// https://kellerjordan.github.io/posts/muon; scales: Liu et al. 2025, arXiv:2502.16982.
//   B = mu B + (1 - mu) g;  u = (1 - mu) g + mu B under nesterov, else B
//   w = (1 - lr wd) w - lr k O,  O = X after `iterations` of
//   X = u / |u|;  A = X X^T;  X = 3.4445 X + (-4.7750 A + 2.0315 A A) X     (rows <= columns)
// In float32. With more dimensions, the last two are a matrix. One moment; AdamW has two.
#pragma once

#include "tessera/ops/tensor.h"
#include "tessera/train/optimizer/optimizer_recipe.h"
#include "tessera/train/optimizer/update_rule.h"

namespace tessera::train {

/// O of u [.., rows, columns], on its device.
Tensor orthogonalised(const Tensor& u, int64_t iterations);

/// k of a parameter.
double muon_scale(MuonScale scale, const ParameterInfo& slot);

class Muon final : public UpdateRule {
 public:
  Muon(std::vector<ParameterInfo> slots, MuonKeys keys);
  void update(std::span<const Parameter> parameters, const Step& step) override;
  std::vector<RuleState> state() override;

 private:
  std::vector<ParameterInfo> slots_;
  MuonKeys keys_;
  ElementChunks pieces_;
  Moments b_;
};

}  // namespace tessera::train
