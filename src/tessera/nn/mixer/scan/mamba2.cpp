#include "tessera/nn/mixer/scan/mamba2.h"

#include <limits>

#include "tessera/nn/mixer/convolution/causal_conv.h"
#include "tessera/nn/mixer/linear/recurrence.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/scan/mamba2.h"

namespace tessera::nn {
namespace {

class Mamba2 final : public Mixer {
 public:
  Mamba2(const Mamba2Config& config, const Builder& builder)
      : config_(config),
        in_(builder, "in"),
        out_(builder, "out"),
        conv_(builder, "conv", kernels::Activation::silu),
        dt_bias_(builder.weight("dt_bias")),
        a_log_(builder.weight("a_log")),
        d_(builder.weight("d")),
        norm_(builder.optional("norm.weight")) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t e = config_.d_ssm, channels = config_.conv_channels(), h = config_.heads(),
                  beside = config_.beside();
    Tensor projected_NC = in_(x_ND), beside_NC;
    if (beside > 0) {
      const auto split =
          projected_NC.split_with_sizes({beside, beside, projected_NC.size(1) - 2 * beside}, -1);
      beside_NC = ops::gated(split[0], split[1], ops::Activation::silu);
      projected_NC = split[2];
    }
    const auto parts = projected_NC.split_with_sizes({e, channels, h}, -1);
    const Tensor xbc_NC = conv_(parts[1], *context.batch, rows, kConv);
    const Tensor dt_NH = step_sizes(parts[2]);
    Tensor y_NE = for_runs(x_ND, context, rows, [&](const Run& run) {
      return scan(run, inputs(run.of(xbc_NC, {channels}), run.of(dt_NH, {h})));
    });
    if (config_.d_per_channel)
      y_NE = y_NE + (ops::spread(d_->tensor().to(ops::wide(x_ND)), y_NE) * xbc_NC.narrow(1, 0, e))
                        .to(y_NE.scalar_type());
    y_NE = config_.norm_groups == 0 ? ops::gated(parts[0], y_NE, ops::Activation::silu)
                                    : ops::gated_rms_norm(y_NE, parts[0], norm_->tensor(),
                                                          config_.norm_groups, config_.norm_eps);
    return out_(beside_NC.defined() ? at::cat({beside_NC, y_NE}, -1) : y_NE);
  }

 private:
  Tensor step_sizes(const Tensor& raw_NH) const {
    const auto type = ops::wide(raw_NH);
    const Tensor biased = raw_NH.to(type) + ops::spread(dt_bias_->tensor().to(type), raw_NH);
    const Tensor dt = ops::softplus(biased);
    if (config_.dt_min == 0 && !config_.dt_max) return dt;
    return at::clamp(dt, config_.dt_min,
                     config_.dt_max.value_or(std::numeric_limits<double>::infinity()));
  }

  /// xbc_BTC, convolved, split into the inputs of the recurrence.
  ops::Ssd inputs(const Tensor& xbc_BTC, const Tensor& dt_BTH) const {
    const int64_t b = xbc_BTC.size(0), t = xbc_BTC.size(1), gn = config_.n_groups * config_.d_state;
    const auto parts = xbc_BTC.split_with_sizes({config_.d_ssm, gn, gn}, -1);
    const auto type = ops::wide(xbc_BTC);
    return {parts[0].reshape({b, t, config_.heads(), config_.head_dim}),
            dt_BTH,
            -a_log_->tensor().to(type).exp(),
            parts[1].reshape({b, t, config_.n_groups, config_.d_state}),
            parts[2].reshape({b, t, config_.n_groups, config_.d_state}),
            config_.d_per_channel ? Tensor() : d_->tensor().to(type)};
  }

  Tensor scan(const Run& run, ops::Ssd in) const {
    in.documents = run.documents;
    if (run.kernels) {
      Tensor state = run.row != nullptr
                         ? run.row->fixed_in_place(kSsm)
                         : at::zeros({config_.heads(), config_.head_dim, config_.d_state});
      return ops::ssd_scan(in, state);
    }
    if (run.row == nullptr) return ops::ssd_y(in, config_.chunk);
    const Tensor before = run.row->fixed(kSsm).unsqueeze(0);
    const auto [y, after] =
        run.t == 1 ? ops::ssd_recurrent(in, before) : ops::ssd(in, config_.chunk, before);
    run.row->fixed(kSsm) = after.squeeze(0);
    return y;
  }

  static constexpr size_t kSsm = 0, kConv = 1;  // as declared in Mamba2Config::state
  Mamba2Config config_;
  Linear in_, out_;
  CausalConv conv_;
  WeightPtr dt_bias_, a_log_, d_, norm_;
};

}  // namespace

std::unique_ptr<Mixer> build(const Mamba2Config& config, const Builder& builder) {
  return std::make_unique<Mamba2>(config, builder);
}

}  // namespace tessera::nn
