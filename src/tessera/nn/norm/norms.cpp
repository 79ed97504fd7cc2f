#include "tessera/kernels/basic/rowwise.h"
#include "tessera/nn/context.h"
#include "tessera/nn/decode_step.h"
#include "tessera/nn/norm/affine.h"
#include "tessera/nn/norm/batch_norm.h"
#include "tessera/nn/norm/dyt.h"
#include "tessera/nn/norm/gated_norm.h"
#include "tessera/nn/norm/group_norm.h"
#include "tessera/nn/norm/l2_norm.h"
#include "tessera/nn/norm/layer_norm.h"
#include "tessera/nn/norm/rms_norm.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/step_products.h"
#include "tessera/ops/basic/batch_norm.h"
#include "tessera/ops/basic/l2_norm.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/over_rows.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

double offset_of(NormWeight weight) {
  return weight == NormWeight::plus_one ? 1 : 0;
}
Tensor value_of(const WeightPtr& weight) {
  return weight ? weight->tensor() : Tensor();
}

/// Of rms_norm and layer_norm.
class StatisticsStep final : public NormStep {
 public:
  StatisticsStep(bool centred, StepNumbers weight, StepNumbers bias, double offset, double eps)
      : centred_(centred),
        weight_(std::move(weight)),
        bias_(std::move(bias)),
        offset_(static_cast<float>(offset)),
        eps_(static_cast<float>(eps)) {}
  void operator()(const float* x, int64_t rows, int64_t width, float* y) const override {
    if (centred_)
      kernels::layer_norm(x, rows, width, weight_.data(), bias_.data(), offset_, eps_, y);
    else
      kernels::rms_norm(x, rows, width, weight_.data(), offset_, eps_, y);
  }

 private:
  bool centred_;
  StepNumbers weight_, bias_;
  float offset_, eps_;
};

class RmsNorm final : public Norm {
 public:
  RmsNorm(const RmsNormConfig& config, const Builder& builder)
      : config_(config), weight_(builder.optional("weight")) {}
  Tensor forward(const Tensor& x, const ops::ProductSettings&) const override {
    return ops::rms_norm(x, value_of(weight_), offset_of(config_.weight), config_.eps);
  }
  std::shared_ptr<const NormStep> step() const override {
    if (!others_at_default(config_, {"eps", "weight"}) || !StepNumbers::stay(weight_))
      return nullptr;
    return std::make_shared<StatisticsStep>(false, StepNumbers(weight_), StepNumbers(),
                                            offset_of(config_.weight), config_.eps);
  }

 private:
  RmsNormConfig config_;
  WeightPtr weight_;
};

class LayerNorm final : public Norm {
 public:
  LayerNorm(const LayerNormConfig& config, const Builder& builder)
      : config_(config), weight_(builder.optional("weight")), bias_(builder.optional("bias")) {}
  Tensor forward(const Tensor& x, const ops::ProductSettings&) const override {
    return ops::layer_norm(x, value_of(weight_), value_of(bias_), offset_of(config_.weight),
                           config_.eps);
  }
  std::shared_ptr<const NormStep> step() const override {
    if (!others_at_default(config_, {"eps", "weight", "bias"}) || !StepNumbers::stay(weight_) ||
        !StepNumbers::stay(bias_))
      return nullptr;
    return std::make_shared<StatisticsStep>(true, StepNumbers(weight_), StepNumbers(bias_),
                                            offset_of(config_.weight), config_.eps);
  }

 private:
  LayerNormConfig config_;
  WeightPtr weight_, bias_;
};

class L2Norm final : public Norm {
 public:
  L2Norm(const L2NormConfig& config, const Builder& builder)
      : config_(config), weight_(builder.optional("weight")) {}
  Tensor forward(const Tensor& x, const ops::ProductSettings&) const override {
    const Tensor unit = ops::l2_norm(x, config_.eps);
    return weight_ ? unit * ops::spread(weight_->tensor().to(unit.options()), unit) : unit;
  }

 private:
  L2NormConfig config_;
  WeightPtr weight_;
};

/// x * w + b of every channel, in x's type.
Tensor affine(const Tensor& x, const Tensor& w, const Tensor& b) {
  const auto type = x.scalar_type();
  return x * ops::over_rows(w.to(type), x) + ops::over_rows(b.to(type), x);
}

class Affine final : public Norm {
 public:
  explicit Affine(const Builder& builder)
      : weight_(builder.weight("weight")), bias_(builder.weight("bias")) {}
  Tensor forward(const Tensor& x, const ops::ProductSettings&) const override {
    return affine(x, weight_->tensor(), bias_->tensor());
  }

 private:
  WeightPtr weight_, bias_;
};

class GroupNorm final : public Norm {
 public:
  GroupNorm(const GroupNormConfig& config, const Builder& builder)
      : config_(config), weight_(builder.optional("weight")), bias_(builder.optional("bias")) {}
  Tensor forward(const Tensor& x, const ops::ProductSettings&) const override {
    const Tensor groups = x.reshape({-1, x.size(-1) / config_.groups});
    const Tensor y = ops::layer_norm(groups, {}, {}, 0, config_.eps).reshape(x.sizes());
    return weight_ ? affine(y, weight_->tensor(), bias_->tensor()) : y;
  }

 private:
  GroupNormConfig config_;
  WeightPtr weight_, bias_;
};

class BatchNorm final : public Norm {
 public:
  BatchNorm(const BatchNormConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        weight_(builder.optional("weight")),
        bias_(builder.optional("bias")),
        mean_(builder.weight("running_mean")),
        var_(builder.weight("running_var")) {}
  Tensor forward(const Tensor& x, const ops::ProductSettings&) const override {
    const Tensor root = (var_->tensor().detach() + config_.eps).rsqrt();
    const Tensor y = affine(x, root, -mean_->tensor().detach() * root);
    return weight_ ? affine(y, weight_->tensor(), bias_->tensor()) : y;
  }
  Tensor forward(const Tensor& x, const Context& context) const override {
    if (!context.training) return forward(x, context.products);
    if (x.size(0) < 2)
      fail(ErrorKind::input, name_, "a batch of one token has no variance; expected two or more");
    if (context.add_statistic) context.add_statistic(name_ + ".moments", moments(x.detach()));
    const Tensor y = ops::batch_norm(x, config_.eps);
    return weight_ ? affine(y, weight_->tensor(), bias_->tensor()) : y;
  }

 private:
  /// Tokens, sums and sums of squares of x [N, C].
  static Tensor moments(const Tensor& x) {
    const Tensor exact = x.to(at::kDouble);
    return at::cat(
        {at::full({1}, x.size(0), exact.options()), exact.sum(0), exact.square().sum(0)});
  }

  BatchNormConfig config_;
  std::string name_;
  WeightPtr weight_, bias_, mean_, var_;
};

class GatedNorm final : public Norm {
 public:
  GatedNorm(const GatedNormConfig& config, const Builder& builder)
      : config_(config),
        weight_(builder.weight("weight")),
        down_(builder, "down"),
        up_(builder, "up") {}
  Tensor forward(const Tensor& x, const ops::ProductSettings& products) const override {
    const Tensor n = ops::rms_norm(x.reshape({-1, x.size(-1)}), weight_->tensor(), 0, config_.eps);
    const Tensor gate = up_(ops::activate(down_(n, products), ops::Activation::silu), products);
    return ops::gated(gate, n, ops::Activation::sigmoid).reshape(x.sizes());
  }

 private:
  GatedNormConfig config_;
  WeightPtr weight_;
  Linear down_, up_;
};

class Dyt final : public Norm {
 public:
  explicit Dyt(const Builder& builder)
      : alpha_(builder.weight("alpha")),
        weight_(builder.weight("weight")),
        bias_(builder.weight("bias")) {}
  Tensor forward(const Tensor& x, const ops::ProductSettings&) const override {
    const Tensor scaled = x * ops::over_rows(alpha_->tensor().to(x.scalar_type()), x);
    return affine(ops::activate(scaled, ops::Activation::tanh), weight_->tensor(), bias_->tensor());
  }

 private:
  WeightPtr alpha_, weight_, bias_;
};

}  // namespace

std::unique_ptr<Norm> build(const GroupNormConfig& config, const Builder& builder) {
  return std::make_unique<GroupNorm>(config, builder);
}
std::unique_ptr<Norm> build(const AffineConfig&, const Builder& builder) {
  return std::make_unique<Affine>(builder);
}
std::unique_ptr<Norm> build(const BatchNormConfig& config, const Builder& builder) {
  return std::make_unique<BatchNorm>(config, builder);
}
std::unique_ptr<Norm> build(const GatedNormConfig& config, const Builder& builder) {
  return std::make_unique<GatedNorm>(config, builder);
}
std::unique_ptr<Norm> build(const DytConfig&, const Builder& builder) {
  return std::make_unique<Dyt>(builder);
}
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
