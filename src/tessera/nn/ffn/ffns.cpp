#include "tessera/nn/activation_kernel.h"
#include "tessera/nn/ffn/glu.h"
#include "tessera/nn/ffn/linear.h"
#include "tessera/nn/ffn/mlp.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

class Mlp final : public Ffn {
 public:
  Mlp(const MlpConfig& config, const Builder& builder)
      : act_(kernel_of(config.act)), up_(builder, "up"), down_(builder, "down") {}
  Tensor forward(const Tensor& x_ND, Context& context) const override {
    return down_(ops::activate(up_(x_ND, context), act_), context);
  }

 private:
  ops::Activation act_;
  Linear up_, down_;
};

class Glu final : public Ffn {
 public:
  Glu(const GluConfig& config, const Builder& builder)
      : config_(config),
        act_(kernel_of(config.act)),
        gate_(builder, "gate"),
        up_(builder, "up"),
        down_(builder, "down") {}
  Tensor forward(const Tensor& x_ND, Context& context) const override {
    Tensor gate = gate_(x_ND, context), up = up_(x_ND, context);
    if (config_.limit > 0) {
      gate = gate.clamp_max(config_.limit);
      up = up.clamp(-config_.limit, config_.limit);
    }
    if (config_.up_offset != 0) up = up + config_.up_offset;
    if (config_.slope == 1) return down_(ops::gated(gate, up, act_), context);
    return down_(ops::gated(gate * config_.slope, up, act_) / config_.slope, context);
  }

 private:
  GluConfig config_;
  ops::Activation act_;
  Linear gate_, up_, down_;
};

class LinearFfn final : public Ffn {
 public:
  explicit LinearFfn(const Builder& builder) : out_(builder, "out") {}
  Tensor forward(const Tensor& x_ND, Context& context) const override {
    return out_(x_ND, context);
  }

 private:
  Linear out_;
};

}  // namespace

std::unique_ptr<Ffn> build(const LinearFfnConfig&, const Builder& builder) {
  return std::make_unique<LinearFfn>(builder);
}
std::unique_ptr<Ffn> build(const MlpConfig& config, const Builder& builder) {
  return std::make_unique<Mlp>(config, builder);
}
std::unique_ptr<Ffn> build(const GluConfig& config, const Builder& builder) {
  return std::make_unique<Glu>(config, builder);
}

}  // namespace tessera::nn
