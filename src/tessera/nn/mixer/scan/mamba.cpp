#include "tessera/nn/mixer/scan/mamba.h"

#include "tessera/nn/mixer/convolution/causal_conv.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/head_linear.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/scan/selective_scan.h"

namespace tessera::nn {
namespace {

class Mamba final : public Mixer {
 public:
  Mamba(const MambaConfig& config, const Builder& builder)
      : config_(config),
        in_(builder, "in"),
        out_(builder, "out"),
        conv_(builder, "conv", kernels::Activation::silu),
        select_(builder.weight("select.weight")),
        dt_weight_(builder.weight("dt.weight")),
        dt_bias_(builder.weight("dt.bias")),
        a_log_(builder.weight("a_log")),
        d_(builder.weight("d")) {
    if (config.norm)
      for (size_t i = 0; i < 3; ++i) {
        constexpr const char* kNames[] = {"dt_norm", "b_norm", "c_norm"};
        spec::Scope scope = builder.scope();
        scope.width = i == 0 ? config.dt_rank : config.d_state;
        norms_[i] = build_norm(config.norm, builder.under(kNames[i], scope));
      }
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const Batch& batch = *context.batch;
    const auto parts = in_(x_ND, context).split(config_.d_inner, -1);
    const Tensor x_NE = conv_(parts[0], batch, rows, kConv);
    const auto heads = inputs(x_NE, context);
    std::vector<Tensor> y;
    for (size_t h = 0; h < heads.size(); ++h) y.push_back(scan(heads[h], h, batch, rows));
    const Tensor y_NE = y.size() == 1 ? y[0] : at::cat(y, -1);
    return out_(ops::gated(parts[1], y_NE, ops::Activation::silu), context);
  }

 private:
  /// What the recurrence of each head reads.
  std::vector<ops::SelectiveScan> inputs(const Tensor& x_NE, const Context& context) const {
    const int64_t heads = config_.n_heads, width = config_.d_inner / heads;
    const auto product = [&](const Tensor& x_NHI, const ops::Weight& w) {
      return heads == 1 ? ops::linear(x_NHI, w, nullptr, context.products)
                        : ops::head_linear(x_NHI, w, nullptr, context.products);
    };
    auto parts = product(x_NE.unflatten(-1, {heads, width}), *select_)
                     .split_with_sizes({config_.dt_rank, config_.d_state, config_.d_state}, -1);
    for (size_t i = 0; i < 3; ++i)
      if (norms_[i]) parts[i] = norms_[i]->forward(parts[i], context.products);
    const auto type = ops::wide(x_NE);
    const Tensor dt_NHE = product(parts[0], *dt_weight_);
    const Tensor bias_E = dt_bias_->tensor().to(type), d_E = d_->tensor().to(type);
    const Tensor a_NE = -a_log_->tensor().to(type).t().exp();
    std::vector<ops::SelectiveScan> out;
    for (int64_t h = 0; h < heads; ++h) {
      const auto mine = [&](const Tensor& t, int64_t axis) {
        return t.narrow(axis, h * width, width);
      };
      out.push_back({mine(x_NE, 1), dt_NHE.select(1, h), mine(bias_E, 0), mine(a_NE, 1),
                     parts[1].select(1, h), parts[2].select(1, h), mine(d_E, 0)});
    }
    return out;
  }

  Tensor scan(const ops::SelectiveScan& in,
              size_t head,
              const Batch& batch,
              const StateRows* rows) const {
    const bool kernels = ops::kernel_serves(ops::Op::selective_scan, in.x_TE);
    if (rows == nullptr && !kernels)
      return ops::selective_scan(in, lengths_of(batch), config_.chunk);
    const auto of_head = [&](const Tensor& state) {
      return config_.n_heads == 1 ? state : state.select(0, static_cast<int64_t>(head));
    };
    const BySegment of_segment(batch);
    return over_segments(batch, kernels, [&](size_t i, const Segment&) {
      ops::SelectiveScan part = in;
      part.x_TE = of_segment(in.x_TE, i), part.dt_TE = of_segment(in.dt_TE, i);
      part.b_TN = of_segment(in.b_TN, i), part.c_TN = of_segment(in.c_TN, i);
      if (kernels) {
        Tensor state = rows != nullptr ? of_head((*rows)[i]->fixed_in_place(kSsm))
                                       : at::zeros(in.a_NE.sizes(), in.x_TE.options());
        return ops::selective_scan_kernel(part, state);
      }
      Tensor& state = (*rows)[i]->fixed(kSsm);
      const auto [y, after] = ops::selective_scan_from(part, config_.chunk, of_head(state));
      const Tensor kept = after.to(state.scalar_type());
      state =
          config_.n_heads == 1 ? kept : state.select_scatter(kept, 0, static_cast<int64_t>(head));
      return y;
    });
  }

  static constexpr size_t kSsm = 0, kConv = 1;  // as declared in MambaConfig::state
  MambaConfig config_;
  Linear in_, out_;
  CausalConv conv_;
  WeightPtr select_, dt_weight_, dt_bias_, a_log_, d_;
  std::unique_ptr<Norm> norms_[3];  // of dt, B, C
};

}  // namespace

std::unique_ptr<Mixer> build(const MambaConfig& config, const Builder& builder) {
  return std::make_unique<Mamba>(config, builder);
}

}  // namespace tessera::nn
