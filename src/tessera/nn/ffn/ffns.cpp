#include "tessera/nn/activation_kernel.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/ffn/glu.h"
#include "tessera/nn/ffn/linear.h"
#include "tessera/nn/ffn/mlp.h"
#include "tessera/nn/ffn/xielu.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/over_rows.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/basic/xielu.h"
#include "tessera/ops/weights/product_input.h"

namespace tessera::nn {
namespace {

/// act(s h) / s with s given or learned.
class Sloped {
 public:
  Sloped(Activation act, double slope, bool learned, const Builder& builder)
      : act_(kernel_of(act)), slope_(slope), learned_(builder.optional("slope")) {
    require(learned == (learned_ != nullptr), "ffn", "{}: slope", builder.prefix());
  }
  Tensor operator()(const Tensor& h) const {
    if (learned_) return h * sigmoid(h);
    return slope_ == 1 ? ops::activate(h, act_) : ops::activate(h * slope_, act_) / slope_;
  }
  /// The same of `gate`, times `up`.
  Tensor operator()(const Tensor& gate, const Tensor& up) const {
    if (learned_) return (*this)(gate)*up;
    return slope_ == 1 ? ops::gated(gate, up, act_) : ops::gated(gate * slope_, up, act_) / slope_;
  }

 private:
  Tensor sigmoid(const Tensor& h) const {
    return ops::activate(h * ops::over_rows(learned_->tensor().to(h.scalar_type()), h),
                         ops::Activation::sigmoid);
  }
  ops::Activation act_;
  double slope_;
  WeightPtr learned_;
};

/// What stands before the last product: a norm, and dropout by token.
class Hidden {
 public:
  template <class C>
  Hidden(const C& config, const Builder& builder)
      : name_(builder.prefix()), dropout_(config.dropout) {
    if constexpr (requires { config.inner_norm; })
      if (config.inner_norm)
        norm_ = build_norm(config.inner_norm,
                           builder.under("inner_norm", config.child_scope(builder.scope(), "")));
  }
  Tensor operator()(Tensor h, const Context& context) const {
    if (norm_) h = norm_->forward(h);
    return dropout_ > 0 ? dropout(h, dropout_, name_, context) : h;
  }

 private:
  std::string name_;
  double dropout_;
  std::unique_ptr<Norm> norm_;
};

class Mlp final : public Ffn {
 public:
  Mlp(const MlpConfig& config, const Builder& builder)
      : act_(config.act, config.slope, config.learned_slope, builder),
        hidden_(config, builder),
        up_(builder, "up"),
        down_(builder, "down") {}
  Tensor forward(const Tensor& x_ND, Context& context) const override {
    return down_(hidden_(act_(up_(x_ND, context)), context), context);
  }

 private:
  Sloped act_;
  Hidden hidden_;
  Linear up_, down_;
};

class Xielu final : public Ffn {
 public:
  Xielu(const XieluConfig& config, const Builder& builder)
      : config_(config),
        hidden_(config, builder),
        up_(builder, "up"),
        down_(builder, "down"),
        p_(builder.weight("alpha_p")),
        n_(builder.weight("alpha_n")) {}
  Tensor forward(const Tensor& x_ND, Context& context) const override {
    const Tensor h =
        ops::xielu(up_(x_ND, context), p_->tensor(), n_->tensor(), config_.beta, config_.eps);
    return down_(hidden_(h, context), context);
  }

 private:
  XieluConfig config_;
  Hidden hidden_;
  Linear up_, down_;
  WeightPtr p_, n_;
};

class Glu final : public Ffn {
 public:
  Glu(const GluConfig& config, const Builder& builder)
      : config_(config),
        act_(config.act, config.slope, config.learned_slope, builder),
        hidden_(config, builder),
        gate_(builder, "gate"),
        up_(builder, "up"),
        down_(builder, "down") {}
  Tensor forward(const Tensor& x_ND, Context& context) const override {
    const ops::SharedInput shared(x_ND);
    Tensor gate = gate_(x_ND, context), up = up_(x_ND, context);
    if (config_.limit > 0) {
      gate = gate.clamp_max(config_.limit);
      up = up.clamp(-config_.limit, config_.limit);
    }
    if (config_.up_offset != 0) up = up + config_.up_offset;
    return down_(hidden_(act_(gate, up), context), context);
  }

 private:
  GluConfig config_;
  Sloped act_;
  Hidden hidden_;
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
std::unique_ptr<Ffn> build(const XieluConfig& config, const Builder& builder) {
  return std::make_unique<Xielu>(config, builder);
}
std::unique_ptr<Ffn> build(const GluConfig& config, const Builder& builder) {
  return std::make_unique<Glu>(config, builder);
}

}  // namespace tessera::nn
