#include "tessera/nn/mixer/linear/lightning_attention.h"

#include <cmath>

#include "tessera/nn/mixer/linear/recurrence.h"

namespace tessera::nn {
namespace {

class LightningAttention final : public Mixer {
 public:
  LightningAttention(const LightningAttentionConfig& config, const Builder& builder)
      : config_(config),
        name_(builder.prefix()),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        g_(builder, "g"),
        o_(builder, "o"),
        norm_(builder.weight("norm.weight")),
        log_decay_H_(at::tensor(config.log_decays(builder.scope()), at::kDouble)) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t h = config_.n_heads, k = config_.key_dim, v = config_.value_dim;
    const auto silu = [](const Tensor& x) { return ops::activate(x, ops::Activation::silu); };
    Tensor q_NE = silu(q_(x_ND, context));
    if (config_.slopes == LightningSlopes::fla)
      q_NE = q_NE * (1 / std::sqrt(static_cast<double>(k)));
    const Tensor k_NE = silu(k_(x_ND, context)), v_NE = silu(v_(x_ND, context));
    const Tensor log_decay_H = context.on_device(name_ + ".decays", log_decay_H_);
    const Tensor o_NE = for_runs(x_ND, context, rows, [&](const Run& run) {
      return recur(run,
                   {run.of(q_NE, {h, k}), run.of(k_NE, {h, k}), run.of(v_NE, {h, v}), log_decay_H},
                   config_.chunk, 0);
    });
    const Tensor normed = ops::rms_norm(o_NE, norm_->tensor(), 0, config_.norm_eps);
    return o_(ops::gated(g_(x_ND, context), normed, ops::Activation::sigmoid), context);
  }

 private:
  LightningAttentionConfig config_;
  std::string name_;
  Linear q_, k_, v_, g_, o_;
  WeightPtr norm_;
  Tensor log_decay_H_;
};

}  // namespace

std::unique_ptr<Mixer> build(const LightningAttentionConfig& config, const Builder& builder) {
  return std::make_unique<LightningAttention>(config, builder);
}

}  // namespace tessera::nn
