#include "tessera/nn/mixer/mamba2.h"

#include <limits>

#include "tessera/nn/parts.h"
#include "tessera/ops/pointwise.h"
#include "tessera/ops/ssm.h"

namespace tessera::nn {
namespace {

class Mamba2 final : public Mixer {
 public:
  Mamba2(const Mamba2Config& config, const Builder& builder)
      : config_(config),
        in_(builder, "in"),
        out_(builder, "out"),
        conv_weight_(builder.weight("conv.weight")),
        conv_bias_(builder.optional("conv.bias")),
        dt_bias_(builder.weight("dt_bias")),
        a_log_(builder.weight("a_log")),
        d_(builder.weight("d")),
        norm_(builder.weight("norm.weight")) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const int64_t e = config_.inner(), channels = config_.conv_channels();
    const auto parts = in_(x_ND).split_with_sizes({e, channels, config_.n_heads}, -1);
    const Tensor &z_NE = parts[0], &xbc_NC = parts[1];
    const Tensor dt_NH = step_sizes(parts[2]);

    const Batch& batch = *context.batch;
    Tensor y_NE;
    if (const int64_t t = batch.equal_length();
        rows == nullptr && t > 0 && !ops::use_kernels(x_ND)) {
      const int64_t b = x_ND.size(0) / t;
      y_NE = chunked(xbc_NC.reshape({b, t, channels}), dt_NH.reshape({b, t, config_.n_heads}))
                 .reshape({x_ND.size(0), e});
    } else {
      std::vector<Tensor> ys;
      for (size_t i = 0; i < batch.segments.size(); ++i) {
        const Segment& s = batch.segments[i];
        const Tensor xbc = xbc_NC.narrow(0, s.begin, s.length),
                     dt = dt_NH.narrow(0, s.begin, s.length);
        if (ops::use_kernels(x_ND)) {
          ys.push_back(scan(xbc, dt, rows != nullptr ? (*rows)[i] : nullptr));
        } else if (rows != nullptr) {
          ys.push_back(recurrent(xbc, dt, *(*rows)[i]));
        } else {
          ys.push_back(chunked(xbc.unsqueeze(0), dt.unsqueeze(0)).reshape({s.length, e}));
        }
      }
      y_NE = ys.size() == 1 ? ys[0] : at::cat(ys);
    }
    return out_(
        ops::gated_rms_norm(y_NE, z_NE, norm_->tensor(), config_.norm_groups, config_.norm_eps));
  }

 private:
  Tensor step_sizes(const Tensor& raw_NH) const {
    const auto type = ops::wide(raw_NH);
    const Tensor biased = raw_NH.to(type) + dt_bias_->tensor().to(type);
    const Tensor dt = ops::softplus(biased);
    if (config_.dt_min == 0 && !config_.dt_max) return dt;
    return at::clamp(dt, config_.dt_min,
                     config_.dt_max.value_or(std::numeric_limits<double>::infinity()));
  }

  /// xbc_BTC after convolution and activation, split into the inputs of the recurrence.
  ops::Ssd inputs(const Tensor& xbc_BTC, const Tensor& dt_BTH) const {
    const int64_t b = xbc_BTC.size(0), t = xbc_BTC.size(1), gn = config_.n_groups * config_.d_state;
    const auto parts = xbc_BTC.split_with_sizes({config_.inner(), gn, gn}, -1);
    const auto type = ops::wide(xbc_BTC);
    return {parts[0].reshape({b, t, config_.n_heads, config_.head_dim}),
            dt_BTH,
            -a_log_->tensor().to(type).exp(),
            parts[1].reshape({b, t, config_.n_groups, config_.d_state}),
            parts[2].reshape({b, t, config_.n_groups, config_.d_state}),
            d_->tensor().to(type)};
  }

  Tensor conv_bias() const { return conv_bias_ ? conv_bias_->tensor() : Tensor(); }

  Tensor chunked(const Tensor& xbc_BTC, const Tensor& dt_BTH) const {
    const Tensor activated =
        at::silu(ops::causal_conv(xbc_BTC, conv_weight_->tensor(), conv_bias()));
    return ops::ssd_chunked(inputs(activated, dt_BTH), config_.chunk).first;
  }

  Tensor recurrent(const Tensor& xbc_TC, const Tensor& dt_TH, RowState& row) const {
    const Tensor tail = row.fixed(kConv);
    const Tensor activated = at::silu(ops::causal_conv(xbc_TC.unsqueeze(0), conv_weight_->tensor(),
                                                       conv_bias(), tail.unsqueeze(0)));
    auto [y, state] =
        ops::ssd_recurrent(inputs(activated, dt_TH.unsqueeze(0)), row.fixed(kSsm).unsqueeze(0));
    row.fixed(kSsm) = state.squeeze(0);
    const Tensor seen = at::cat({tail.to(xbc_TC.scalar_type()), xbc_TC});
    row.fixed(kConv) =
        seen.narrow(0, seen.size(0) - tail.size(0), tail.size(0)).to(tail.scalar_type());
    return y.reshape({xbc_TC.size(0), config_.inner()});
  }

  /// The kernels, token after token, from the row's state or from nothing.
  Tensor scan(const Tensor& xbc_TC, const Tensor& dt_TH, RowState* row) const {
    Tensor tail = row != nullptr ? row->fixed_in_place(kConv)
                                 : at::zeros({config_.d_conv - 1, config_.conv_channels()});
    Tensor state = row != nullptr ? row->fixed_in_place(kSsm)
                                  : at::zeros({config_.n_heads, config_.head_dim, config_.d_state});
    const Tensor activated = ops::causal_conv_kernel(xbc_TC, conv_weight_->tensor(), conv_bias(),
                                                     tail, kernels::Activation::silu);
    return ops::ssd_scan(inputs(activated.unsqueeze(0), dt_TH.unsqueeze(0)), state)
        .reshape({xbc_TC.size(0), config_.inner()});
  }

  static constexpr size_t kSsm = 0, kConv = 1;  // as declared in Mamba2Config::state
  Mamba2Config config_;
  Linear in_, out_;
  WeightPtr conv_weight_, conv_bias_, dt_bias_, a_log_, d_, norm_;
};

}  // namespace

std::unique_ptr<Mixer> build(const Mamba2Config& config, const Builder& builder) {
  return std::make_unique<Mamba2>(config, builder);
}

}  // namespace tessera::nn
