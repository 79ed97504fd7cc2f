#include "tessera/nn/mixer/linear/gla.h"

#include <cmath>

#include "tessera/nn/mixer/linear/recurrence.h"

namespace tessera::nn {
namespace {

class Gla final : public Mixer {
 public:
  Gla(const GlaConfig& config, const Builder& builder)
      : config_(config),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        g_(builder, "g"),
        decay_down_(builder, "decay_down"),
        decay_up_(builder, "decay_up"),
        o_(builder, "o"),
        norm_(builder.weight("norm.weight")) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t n = x_ND.size(0), h = config_.n_heads, k = config_.key_dim, v = config_.value_dim;
    const Tensor q_NE = q_(x_ND, context) * (1 / std::sqrt(static_cast<double>(k)));
    const Tensor k_NE = k_(x_ND, context), v_NE = v_(x_ND, context);
    const Tensor raw = decay_up_(decay_down_(x_ND, context), context);
    const Tensor log_decay_NE = ops::log_sigmoid(raw.to(ops::wide(raw))) / config_.temper;

    const Tensor o_NE = for_runs(x_ND, context, rows, [&](const Run& run) {
      return recur(run,
                   {run.of(q_NE, {h, k}), run.of(k_NE, {h, k}), run.of(v_NE, {h, v}),
                    run.of(log_decay_NE, {h, k})},
                   config_.chunk, 0);
    });
    const Tensor normed =
        ops::rms_norm(o_NE.reshape({n, h, v}), norm_->tensor(), 0, config_.norm_eps);
    return o_(ops::gated(g_(x_ND, context), normed.reshape({n, h * v}), ops::Activation::silu),
              context);
  }

 private:
  GlaConfig config_;
  Linear q_, k_, v_, g_, decay_down_, decay_up_, o_;
  WeightPtr norm_;
};

}  // namespace

std::unique_ptr<Mixer> build(const GlaConfig& config, const Builder& builder) {
  return std::make_unique<Gla>(config, builder);
}

}  // namespace tessera::nn
