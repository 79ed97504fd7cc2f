// The delta rule layer behind delta_net, gated_delta_net and kda; they differ in what decays.
#include <cmath>

#include "tessera/nn/mixer/convolution/causal_conv.h"
#include "tessera/nn/mixer/linear/delta_net.h"
#include "tessera/nn/mixer/linear/gated_delta_net.h"
#include "tessera/nn/mixer/linear/kda.h"
#include "tessera/nn/mixer/linear/recurrence.h"
#include "tessera/ops/basic/l2_norm.h"
#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::nn {
namespace {

/// The decay is that of the parameters that exist: none, `decay` (one number per head) or
/// `decay_down` and `decay_up` (one per key channel). Likewise the output gate: none, `g`, or
/// `g_down` and `g_up`.
struct DeltaRuleOptions {
  int64_t n_heads = 0, n_key_heads = 0, key_dim = 0, value_dim = 0;
  int64_t chunk = 64;
  double beta_scale = 1;  // beta = beta_scale * sigmoid(...)
  ops::Activation gate = ops::Activation::silu;
  double norm_eps = 1e-5;
};

constexpr double kNormEps = 1e-6;  // of the queries' and keys' l2 norm

/// W x, or W_up W_down x, or nothing: whichever the layer declares.
struct Projection {
  Linear whole, down, up;
  Projection(const Builder& builder, const std::string& name) {
    if (builder.optional(name + ".weight")) whole = Linear(builder, name);
    if (builder.optional(name + "_down.weight"))
      down = Linear(builder, name + "_down"), up = Linear(builder, name + "_up");
  }
  explicit operator bool() const { return whole.weight || down.weight; }
  Tensor operator()(const Tensor& x) const { return whole.weight ? whole(x) : up(down(x)); }
};

class DeltaRule final : public Mixer {
 public:
  DeltaRule(const DeltaRuleOptions& options, const Builder& builder)
      : options_(options),
        q_(builder, "q"),
        k_(builder, "k"),
        v_(builder, "v"),
        beta_(builder, "beta"),
        o_(builder, "o"),
        decay_(builder, "decay"),
        g_(builder, "g"),
        a_log_(builder.optional("a_log")),
        dt_bias_(builder.optional("dt_bias")),
        norm_(builder.weight("norm.weight")) {
    if (builder.optional("conv.weight")) conv_.emplace(builder, "conv", ops::Activation::silu);
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const auto& c = options_;
    const int64_t n = x_ND.size(0), per_channel = decay_.down.weight ? c.key_dim : 1;
    const Tensor projected_NC = at::cat({q_(x_ND), k_(x_ND), v_(x_ND)}, -1);
    const Tensor qkv_NC = conv_ ? (*conv_)(projected_NC, *context.batch, rows, kConv)
                                : ops::activate(projected_NC, ops::Activation::silu);
    const Tensor beta_NH = wide_sigmoid(beta_(x_ND)) * c.beta_scale;
    const Tensor log_decay_NE = decay_ ? log_decay(x_ND, per_channel) : Tensor();

    const Tensor o_NE = for_runs(x_ND, context, rows, [&](const Run& run) {
      ops::LinearRecurrence in = inputs(run, run.of(qkv_NC, {qkv_NC.size(1)}));
      in.beta_BTH = run.of(beta_NH, {c.n_heads});
      if (decay_.down.weight)
        in.log_decay = run.of(log_decay_NE, {c.n_heads, c.key_dim});
      else if (decay_)
        in.log_decay = run.of(log_decay_NE, {c.n_heads});
      return recur(run, in, c.chunk, kState);
    });
    const Tensor normed =
        ops::rms_norm(o_NE.reshape({n, c.n_heads, c.value_dim}), norm_->tensor(), 0, c.norm_eps)
            .reshape({n, c.n_heads * c.value_dim});
    return o_(g_ ? ops::gated(g_(x_ND), normed, c.gate) : normed);
  }

 private:
  static Tensor wide_sigmoid(const Tensor& x) {
    return ops::activate(x.to(ops::wide(x)), ops::Activation::sigmoid);
  }

  /// -exp(a_log) softplus(W x + dt_bias); a_log has one number per head.
  Tensor log_decay(const Tensor& x_ND, int64_t per_head) const {
    const Tensor raw = decay_(x_ND);
    const auto type = ops::wide(raw);
    const Tensor step = ops::softplus(raw.to(type) + ops::spread(dt_bias_->tensor().to(type), raw));
    const Tensor rate = ops::repeat_each(ops::minus_exp(a_log_->tensor().to(type)), per_head, 0);
    return step * ops::spread(rate, step);
  }

  /// Unit queries and keys, by heads; every value head gets its key head.
  ops::LinearRecurrence inputs(const Run& run, const Tensor& qkv_BTC) const {
    const auto& c = options_;
    const int64_t keys = c.n_key_heads * c.key_dim;
    const auto parts = qkv_BTC.split_with_sizes({keys, keys, c.n_heads * c.value_dim}, -1);
    const auto heads = [&](const Tensor& x, double scale) {
      const Tensor unit =
          ops::l2_norm(x.to(ops::wide(x)).reshape({run.b, run.t, c.n_key_heads, c.key_dim}),
                       kNormEps) *
          scale;
      return ops::repeat_each(unit, c.n_heads / c.n_key_heads, 2);
    };
    return {heads(parts[0], 1 / std::sqrt(static_cast<double>(c.key_dim))), heads(parts[1], 1),
            parts[2].reshape({run.b, run.t, c.n_heads, c.value_dim})};
  }

  static constexpr size_t kState = 0, kConv = 1;  // as the configs declare them
  DeltaRuleOptions options_;
  Linear q_, k_, v_, beta_, o_;
  Projection decay_, g_;
  std::optional<CausalConv> conv_;
  WeightPtr a_log_, dt_bias_, norm_;
};

}  // namespace

std::unique_ptr<Mixer> build(const DeltaNetConfig& c, const Builder& builder) {
  const DeltaRuleOptions options{.n_heads = c.n_heads,
                                 .n_key_heads = c.n_heads,
                                 .key_dim = c.key_dim,
                                 .value_dim = c.value_dim,
                                 .chunk = c.chunk,
                                 .beta_scale = c.negative_eigenvalues ? 2.0 : 1.0,
                                 .norm_eps = c.norm_eps};
  return std::make_unique<DeltaRule>(options, builder);
}

std::unique_ptr<Mixer> build(const GatedDeltaNetConfig& c, const Builder& builder) {
  const DeltaRuleOptions options{.n_heads = c.n_heads,
                                 .n_key_heads = c.n_key_heads,
                                 .key_dim = c.key_dim,
                                 .value_dim = c.value_dim,
                                 .chunk = c.chunk,
                                 .beta_scale = c.negative_eigenvalues ? 2.0 : 1.0,
                                 .norm_eps = c.norm_eps};
  return std::make_unique<DeltaRule>(options, builder);
}

std::unique_ptr<Mixer> build(const KdaConfig& c, const Builder& builder) {
  const DeltaRuleOptions options{.n_heads = c.n_heads,
                                 .n_key_heads = c.n_heads,
                                 .key_dim = c.key_dim,
                                 .value_dim = c.value_dim,
                                 .chunk = c.chunk,
                                 .gate = ops::Activation::sigmoid,
                                 .norm_eps = c.norm_eps};
  return std::make_unique<DeltaRule>(options, builder);
}

}  // namespace tessera::nn
