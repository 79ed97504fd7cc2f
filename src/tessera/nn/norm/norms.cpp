#include "tessera/nn/norm/l2_norm.h"
#include "tessera/nn/norm/layer_norm.h"
#include "tessera/nn/norm/rms_norm.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/l2_norm.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

double offset_of(NormWeight weight) {
  return weight == NormWeight::plus_one ? 1 : 0;
}
Tensor value_of(const WeightPtr& weight) {
  return weight ? weight->tensor() : Tensor();
}

class RmsNorm final : public Norm {
 public:
  RmsNorm(const RmsNormConfig& config, const Builder& builder)
      : config_(config), weight_(builder.optional("weight")) {}
  Tensor forward(const Tensor& x) const override {
    return ops::rms_norm(x, value_of(weight_), offset_of(config_.weight), config_.eps);
  }

 private:
  RmsNormConfig config_;
  WeightPtr weight_;
};

class LayerNorm final : public Norm {
 public:
  LayerNorm(const LayerNormConfig& config, const Builder& builder)
      : config_(config), weight_(builder.optional("weight")), bias_(builder.optional("bias")) {}
  Tensor forward(const Tensor& x) const override {
    return ops::layer_norm(x, value_of(weight_), value_of(bias_), offset_of(config_.weight),
                           config_.eps);
  }

 private:
  LayerNormConfig config_;
  WeightPtr weight_, bias_;
};

class L2Norm final : public Norm {
 public:
  L2Norm(const L2NormConfig& config, const Builder& builder)
      : config_(config), weight_(builder.optional("weight")) {}
  Tensor forward(const Tensor& x) const override {
    const Tensor unit = ops::l2_norm(x, config_.eps);
    return weight_ ? unit * weight_->tensor().to(unit.options()) : unit;
  }

 private:
  L2NormConfig config_;
  WeightPtr weight_;
};

}  // namespace

std::unique_ptr<Norm> build(const L2NormConfig& config, const Builder& builder) {
  return std::make_unique<L2Norm>(config, builder);
}
std::unique_ptr<Norm> build(const RmsNormConfig& config, const Builder& builder) {
  return std::make_unique<RmsNorm>(config, builder);
}
std::unique_ptr<Norm> build(const LayerNormConfig& config, const Builder& builder) {
  return std::make_unique<LayerNorm>(config, builder);
}

}  // namespace tessera::nn
