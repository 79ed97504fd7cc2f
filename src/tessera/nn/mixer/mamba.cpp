#include "tessera/nn/mixer/mamba.h"

#include "tessera/nn/mixer/causal_conv.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/pointwise.h"
#include "tessera/ops/selective_scan.h"

namespace tessera::nn {
namespace {

class Mamba final : public Mixer {
 public:
  Mamba(const MambaConfig& config, const Builder& builder)
      : config_(config),
        in_(builder, "in"),
        select_(builder, "select"),
        out_(builder, "out"),
        conv_(builder, "conv", kernels::Activation::silu),
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
    const auto parts = in_(x_ND).split(config_.d_inner, -1);
    const Tensor x_NE = conv_(parts[0], batch, rows, kConv);
    const Tensor y_NE = scan(inputs(x_NE), batch, rows);
    return out_(ops::gated(parts[1], y_NE, ops::Activation::silu));
  }

 private:
  ops::SelectiveScan inputs(const Tensor& x_NE) const {
    auto parts =
        select_(x_NE).split_with_sizes({config_.dt_rank, config_.d_state, config_.d_state}, -1);
    for (size_t i = 0; i < 3; ++i)
      if (norms_[i]) parts[i] = norms_[i]->forward(parts[i]);
    const auto type = ops::wide(x_NE);
    return {x_NE,
            ops::linear(parts[0], *dt_weight_),
            dt_bias_->tensor().to(type),
            -a_log_->tensor().to(type).t().exp(),
            parts[1],
            parts[2],
            d_->tensor().to(type)};
  }

  Tensor scan(const ops::SelectiveScan& in, const Batch& batch, const StateRows* rows) const {
    const bool kernels = ops::use_kernels(in.x_TE);
    if (rows == nullptr && !kernels)
      return ops::selective_scan(in, lengths_of(batch), config_.chunk);
    return over_segments(batch, [&](size_t i, const Segment& s) {
      ops::SelectiveScan part = in;
      for (Tensor* t : {&part.x_TE, &part.dt_TE, &part.b_TN, &part.c_TN})
        *t = t->narrow(0, s.begin, s.length);
      if (kernels) {
        Tensor state = rows != nullptr
                           ? (*rows)[i]->fixed_in_place(kSsm)
                           : at::zeros({config_.d_state, config_.d_inner}, in.x_TE.options());
        return ops::selective_scan_kernel(part, state);
      }
      Tensor& state = (*rows)[i]->fixed(kSsm);
      const auto [y, after] = ops::selective_scan_chunked(part, config_.chunk, state);
      state = after.to(state.scalar_type());
      return y;
    });
  }

  static constexpr size_t kSsm = 0, kConv = 1;  // as declared in MambaConfig::state
  MambaConfig config_;
  Linear in_, select_, out_;
  CausalConv conv_;
  WeightPtr dt_weight_, dt_bias_, a_log_, d_;
  std::unique_ptr<Norm> norms_[3];  // of dt, B, C
};

}  // namespace

std::unique_ptr<Mixer> build(const MambaConfig& config, const Builder& builder) {
  return std::make_unique<Mamba>(config, builder);
}

}  // namespace tessera::nn
