#include <algorithm>
#include <optional>
#include <span>

#include "tessera/kernels/basic/rowwise.h"
#include "tessera/nn/activation_kernel.h"
#include "tessera/nn/decode_step.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/ffn/glu.h"
#include "tessera/nn/ffn/linear.h"
#include "tessera/nn/ffn/mlp.h"
#include "tessera/nn/ffn/xielu.h"
#include "tessera/nn/grouped_linear.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/step_products.h"
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

/// x above the quantile `share` of a normal distribution of each row's mean and deviation, less
/// that; else 0.
Tensor sparse(const Tensor& x, double share) {
  const Tensor z = at::special_ndtri(at::full({}, share, at::kDouble));
  const Tensor mean = x.mean(-1, /*keepdim=*/true), centred = x - mean;
  // rows without deviation have a gradient too
  constexpr double kLeast = 1e-30;
  const Tensor deviation = centred.square().mean(-1, /*keepdim=*/true).clamp_min(kLeast).sqrt();
  return (centred - deviation * z.item<double>()).relu();
}

/// What precedes the last product: a norm, and dropout by token.
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
    if (norm_) h = norm_->forward(h, context.products);
    return dropout_ > 0 ? dropout(h, dropout_, name_, context) : h;
  }
  const Norm* norm() const { return norm_.get(); }

 private:
  std::string name_;
  double dropout_;
  std::unique_ptr<Norm> norm_;
};

/// The decoding step of mlp and glu; experts among them.
class HiddenStep final : public PartStep {
 public:
  struct Options {
    kernels::Activation act;
    double slope = 1, limit = 0, up_offset = 0;  // as glu has them
  };
  HiddenStep(const Options& of,
             const Linear* gate_product,
             const Linear& up_product,
             const Linear& down_product,
             const Norm* inner_norm,
             StepWeights& weights)
      : options(of), up(weights.product(up_product)), down(weights.product(down_product)) {
    if (gate_product != nullptr) gate = weights.product(*gate_product);
    weights.alike({&up, as_given(gate)});
    if (inner_norm != nullptr) norm = weights.norm(*inner_norm);
  }

  std::unique_ptr<StepCall> begin(Context& context, const StateRows*) const override {
    return std::make_unique<Call>(*this, context);
  }

 private:
  class Call final : public StepCall {
   public:
    Call(const HiddenStep& step, const Context& context)
        : s_(step), groups_(context.groups), tokens_(context.batch->n_tokens()) {
      const int64_t n = rows(), width = step.up.rows();
      input_ = memory_.take(StepInput::floats(n, std::max(width, step.up.width())));
      gate_ = memory_.take(step.gate ? n * width : 0);
      up_ = memory_.take(n * width);
    }

    void run(Team& team, const float* x_ND, float* y_ND, float* memory) override {
      const int64_t n = rows(), width = s_.up.rows();
      const std::span<const int64_t> offsets =
          groups_ ? std::span<const int64_t>(groups_->offsets) : std::span<const int64_t>();
      float *gate = memory + gate_, *up = memory + up_;
      StepInput in(x_ND, n, s_.up.width(), memory + input_, offsets);
      in.prepare(team, {&s_.up, as_given(s_.gate)});
      team.wait();
      multiply(team, in, {{as_given(s_.gate), gate}, {&s_.up, up}});
      team.wait();
      const Team::Share mine = team.share(n);
      const int64_t first = mine.begin * width, own = mine.end - mine.begin;
      activate(gate + first, up + first, own * width);
      if (s_.norm) (*s_.norm)(up + first, own, width, up + first);
      StepInput hidden(up, n, width, memory + input_, offsets);
      hidden.prepare(team, {&s_.down});
      team.wait();
      multiply(team, hidden, {{&s_.down, y_ND}});
    }

   private:
    /// Rows of the call, sorted by expert where there are several.
    int64_t rows() const { return groups_ ? groups_->offsets.back() : tokens_; }

    /// What the last product reads of n numbers, to `up`.
    void activate(float* gate, float* up, int64_t n) const {
      const Options& of = s_.options;
      if (of.limit > 0) {
        const auto limit = static_cast<float>(of.limit);
        for (int64_t j = 0; j < n; ++j) {
          gate[j] = std::min(gate[j], limit);
          up[j] = std::min(std::max(up[j], -limit), limit);
        }
      }
      const auto offset = static_cast<float>(of.up_offset);
      for (int64_t j = 0; offset != 0 && j < n; ++j) up[j] += offset;
      const auto slope = static_cast<float>(of.slope);
      float* sloped = s_.gate ? gate : up;
      for (int64_t j = 0; slope != 1 && j < n; ++j) sloped[j] *= slope;
      if (s_.gate)
        kernels::glu(of.act, gate, up, n, up);
      else
        kernels::act(of.act, up, n, up);
      for (int64_t j = 0; slope != 1 && j < n; ++j) up[j] /= slope;
    }

    const HiddenStep& s_;
    std::shared_ptr<const Groups> groups_;
    int64_t tokens_, input_, gate_, up_;
  };

  Options options;
  std::optional<StepProduct> gate;
  StepProduct up, down;
  std::shared_ptr<const NormStep> norm;
};

class Mlp final : public Ffn {
 public:
  Mlp(const MlpConfig& config, const Builder& builder)
      : config_(config),
        act_(config.act, config.slope, config.learned_slope, builder),
        hidden_(config, builder),
        up_(builder, "up", config.groups.up),
        down_(builder, "down", config.groups.down) {}
  Tensor forward(const Tensor& x_ND, Context& context) const override {
    return down_(hidden_(act_(up_(x_ND, context)), context), context);
  }
  std::shared_ptr<const PartStep> step(const ops::ProductSettings& products) const override {
    if (!others_at_default(config_, {"act", "d_hidden", "bias", "slope", "inner_norm", "dropout"}))
      return nullptr;
    StepWeights weights(products);
    auto step = std::make_shared<HiddenStep>(
        HiddenStep::Options{.act = kernel_of(config_.act), .slope = config_.slope}, nullptr, up_,
        down_, hidden_.norm(), weights);
    return weights.serve() ? step : nullptr;
  }

 private:
  MlpConfig config_;
  Sloped act_;
  Hidden hidden_;
  GroupedLinear up_, down_;
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
    Tensor gate = gate_(shared, context), up = up_(shared, context);
    if (config_.limit > 0) {
      gate = gate.clamp_max(config_.limit);
      up = up.clamp(-config_.limit, config_.limit);
    }
    if (config_.up_offset != 0) up = up + config_.up_offset;
    if (config_.sparsity > 0) gate = sparse(gate, config_.sparsity);
    return down_(hidden_(act_(gate, up), context), context);
  }
  std::shared_ptr<const PartStep> step(const ops::ProductSettings& products) const override {
    if (!others_at_default(config_, {"act", "d_hidden", "bias", "down_bias", "slope", "limit",
                                     "up_offset", "inner_norm", "dropout"}))
      return nullptr;
    StepWeights weights(products);
    auto step = std::make_shared<HiddenStep>(HiddenStep::Options{.act = kernel_of(config_.act),
                                                                 .slope = config_.slope,
                                                                 .limit = config_.limit,
                                                                 .up_offset = config_.up_offset},
                                             &gate_, up_, down_, hidden_.norm(), weights);
    return weights.serve() ? step : nullptr;
  }

 private:
  GluConfig config_;
  Sloped act_;
  Hidden hidden_;
  Linear gate_, up_, down_;
};

class LinearFfn final : public Ffn {
 public:
  LinearFfn(const LinearFfnConfig& config, const Builder& builder) {
    if (!config.identity) out_ = Linear(builder, "out");
  }
  Tensor forward(const Tensor& x_ND, Context& context) const override {
    return out_.weight ? out_(x_ND, context) : x_ND;
  }

 private:
  Linear out_;
};

}  // namespace

std::unique_ptr<Ffn> build(const LinearFfnConfig& config, const Builder& builder) {
  return std::make_unique<LinearFfn>(config, builder);
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
