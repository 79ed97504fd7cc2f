// What the two gated attention units share: their projections.
#pragma once

#include "tessera/nn/parts.h"
#include "tessera/ops/pointwise.h"

namespace tessera::nn {

/// U, V and Z of every token, and the affine copies of Z.
class GauParts {
 public:
  GauParts(const Builder& builder, int64_t hidden, int64_t key, const spec::AnyPart& position)
      : hidden_(hidden),
        key_(key),
        in_(builder, "in"),
        gamma_(builder.weight("gamma")),
        beta_(builder.weight("beta")),
        position_(build_position(position, builder.under("position"))) {}

  struct Projected {
    Tensor u_NE, v_NE, z_NS;
  };
  Projected project(const Tensor& x_ND) const {
    const Tensor all = ops::activate(in_(x_ND), ops::Activation::silu);
    const auto parts = all.split_with_sizes({hidden_, hidden_, key_}, -1);
    return {parts[0], parts[1], parts[2]};
  }
  /// Z gamma_i + beta_i, rotated; queries have even i, keys odd.
  Tensor copy(const Tensor& z_NS, int64_t i, Context& context) const {
    const auto row = [&](const WeightPtr& w) {
      return w->tensor().select(0, i).to(z_NS.device(), z_NS.scalar_type());
    };
    const Tensor affine = z_NS * row(gamma_) + row(beta_);
    return position_->rotate(affine.unsqueeze(1), i % 2 == 0 ? Side::query : Side::key, context)
        .squeeze(1);
  }

 private:
  int64_t hidden_, key_;
  Linear in_;
  WeightPtr gamma_, beta_;
  std::unique_ptr<Position> position_;
};

}  // namespace tessera::nn
