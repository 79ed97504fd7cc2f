#include "tessera/nn/mixer/linear/hgrn2.h"

#include <cmath>

#include "tessera/nn/mixer/convolution/causal_conv.h"
#include "tessera/nn/mixer/linear/lower_bound_table.h"
#include "tessera/nn/mixer/linear/recurrence.h"
#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::nn {
namespace {

class Hgrn2 final : public Mixer {
 public:
  Hgrn2(const Hgrn2Config& config, const Builder& builder)
      : config_(config),
        q_(builder, "q"),
        f_(builder, "f"),
        v_(builder, "v"),
        o_(builder, "o"),
        norm_(builder.weight("norm.weight")),
        bounds_(config.lower_bound, Hgrn2Config::kShared, config.keys(), builder) {
    if (config.d_conv > 0) conv_.emplace(builder, "conv", ops::Activation::identity);
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t h = config_.n_heads, k = config_.key_dim, v = config_.value_dim;
    Tensor qfv_NC = at::cat({q_(x_ND, context), f_(x_ND, context), v_(x_ND, context)}, -1);
    if (conv_) qfv_NC = (*conv_)(qfv_NC, *context.batch, rows, kConv);
    const auto parts = qfv_NC.split_with_sizes({h * k, h * k, h * v}, -1);
    Tensor q_NE = ops::activate(parts[0], ops::Activation::silu);
    if (config_.scale) q_NE = q_NE * (1 / std::sqrt(static_cast<double>(k)));
    // ln g and 1 - g = (1 - lb) sigmoid(-f), each without the other's rounding
    const Tensor f_NE = parts[1].to(ops::wide(x_ND)), bound_E = bounds_(f_NE);
    const Tensor log_g_NE = ops::log_sigmoid_above(f_NE, bound_E);
    Tensor k_NE = ops::activate(-f_NE, ops::Activation::sigmoid);
    if (bound_E.defined()) k_NE = k_NE * (1 - ops::spread(bound_E, k_NE));

    const Tensor o_NE = for_runs(x_ND, context, rows, [&](const Run& run) {
      return recur(run,
                   {run.of(q_NE, {h, k}), run.of(k_NE, {h, k}), run.of(parts[2], {h, v}),
                    run.of(log_g_NE, {h, k})},
                   config_.chunk, kState);
    });
    return o_(ops::rms_norm(o_NE, norm_->tensor(), 0, config_.norm_eps), context);
  }

 private:
  static constexpr size_t kState = 0, kConv = 1;
  Hgrn2Config config_;
  Linear q_, f_, v_, o_;
  WeightPtr norm_;
  LowerBoundTable bounds_;
  std::optional<CausalConv> conv_;
};

}  // namespace

std::unique_ptr<Mixer> build(const Hgrn2Config& config, const Builder& builder) {
  return std::make_unique<Hgrn2>(config, builder);
}

}  // namespace tessera::nn
