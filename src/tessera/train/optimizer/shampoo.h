// SOAP and Shampoo: matrices preconditioned with the second moments of their rows and columns,
//   L = b2 L + (1 - b2) G G^T,  R = b2 R + (1 - b2) G^T G
// SOAP (Vyas et al. 2024, arXiv:2409.11321) is Adam in the eigenbases Q of both: G' = QL^T G QR; m,
// v of G'; w = (1 - lr wd) w - lr QL (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)) QR^T. The
// first update only computes the eigenvectors. Every `every` updates the bases are refined by one
// step of orthogonal iteration, Q = qr(L Q), after sorting by eigenvalue, and m is rotated with
// them. As in the authors' program eps is not corrected: w - lr sqrt(1 - b2^t) / (1 - b1^t) m /
// (sqrt(v) + eps). Shampoo (Gupta et al. 2018, arXiv:1802.09568): w = (1 - lr wd) w - lr L'^-1/4 m
// R'^-1/4 with L' = L / (1 - b2^t) + root_eps max eigenvalue, m = b1 m + (1 - b1) G; roots are
// recomputed every `every` updates. With grafting, an update has the norm of Adam's for the same
// matrix (Anil et al. 2020, arXiv:2002.09018). Parameters that are no matrices use Adam. A side
// longer than `largest` has the identity.
//
// On every device, that of the parameters: eigenvectors, QR decompositions and, on other devices
// than the CPU, products are libtorch's. Eigenvectors of a moment without full rank follow from
// rounding.
#pragma once

#include "tessera/ops/tensor.h"
#include "tessera/train/optimizer/optimizer_recipe.h"
#include "tessera/train/optimizer/update_rule.h"

namespace tessera::train {

/// One side of matrices [M, n, n]: its moment, and its basis or root; undefined for the identity.
struct MatrixSide {
  Tensor moment, turn;
};

class Soap final : public UpdateRule {
 public:
  Soap(std::vector<ParameterInfo> slots, SoapKeys keys, at::Device device = at::kCPU);
  void update(std::span<const Parameter> parameters, const Step& step) override;
  std::vector<RuleState> state() override;

 private:
  struct ParameterState {
    Tensor m, v;
    MatrixSide left, right;
  };
  std::vector<ParameterInfo> slots_;
  SoapKeys keys_;
  at::Device device_;
  std::vector<ParameterState> kept_;
};

class Shampoo final : public UpdateRule {
 public:
  Shampoo(std::vector<ParameterInfo> slots, ShampooKeys keys, at::Device device = at::kCPU);
  void update(std::span<const Parameter> parameters, const Step& step) override;
  std::vector<RuleState> state() override;

 private:
  struct ParameterState {
    Tensor m, v;
    MatrixSide left, right;
  };
  std::vector<ParameterInfo> slots_;
  ShampooKeys keys_;
  at::Device device_;
  std::vector<ParameterState> kept_;
};

}  // namespace tessera::train
