#include "tessera/nn/mixer/scan/slstm.h"

#include "tessera/nn/mixer/convolution/causal_conv.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/head_linear.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/scan/slstm.h"

namespace tessera::nn {
namespace {

class Slstm final : public Mixer {
 public:
  Slstm(const SlstmConfig& config, const Builder& builder)
      : config_(config),
        recurrent_(builder.weight("recurrent.weight")),
        bias_(builder.weight("bias")),
        norm_(builder.weight("norm.weight")) {
    if (config.d_conv > 0) conv_.emplace(builder, "conv", kernels::Activation::silu);
    for (const char* gate : {"i", "f", "z", "o"})
      gates_.push_back(builder.weight(std::string(gate) + ".weight"));
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const Batch& batch = *context.batch;
    const auto type = ops::wide(x_ND);
    const int64_t n = x_ND.size(0), d = x_ND.size(1), p = d / config_.n_heads;
    const Tensor seen_ND = conv_ ? (*conv_)(x_ND, batch, rows, kConv) : x_ND;
    std::vector<Tensor> parts;
    for (size_t g = 0; g < 4; ++g)
      parts.push_back(ops::head_linear((g < 2 ? seen_ND : x_ND).reshape({n, -1, p}), *gates_[g],
                                       nullptr, context.products)
                          .reshape({n, d})
                          .to(type));
    const Tensor gates = at::stack(parts, 1);
    const ops::Slstm in{gates + ops::spread(bias_->tensor().to(type), gates),
                        recurrent_->tensor(context.products).to(type).view({4, d, p})};
    const Tensor h_ND = scan(in, batch, rows).to(x_ND.scalar_type());
    const Tensor normed = ops::layer_norm(h_ND.reshape({n * config_.n_heads, p}), Tensor(),
                                          Tensor(), 0, config_.norm_eps);
    return normed.reshape({n, d}) * ops::spread(norm_->tensor().to(x_ND.scalar_type()), x_ND);
  }

 private:
  Tensor scan(const ops::Slstm& in, const Batch& batch, const StateRows* rows) const {
    const bool kernels = ops::kernel_serves(ops::Op::slstm, in.pre_N4D);
    if (rows == nullptr && !kernels) return ops::slstm(in, lengths_of(batch));
    const BySegment part(batch);
    return over_segments(batch, kernels, [&](size_t i, const Segment& s) {
      const ops::Slstm mine{part(in.pre_N4D, i), in.r_4DP};
      const bool fresh = s.start == 0;
      if (kernels) {
        Tensor state = rows != nullptr ? (*rows)[i]->fixed_in_place(kCell)
                                       : at::zeros({4, in.r_4DP.size(1)}, in.pre_N4D.options());
        return ops::slstm_kernel(mine, state, fresh);
      }
      Tensor& state = (*rows)[i]->fixed(kCell);
      const auto [h, after] = ops::slstm_from(mine, fresh ? Tensor() : state);
      state = after.to(state.scalar_type());
      return h;
    });
  }

  static constexpr size_t kCell = 0, kConv = 1;  // as declared in SlstmConfig::state
  SlstmConfig config_;
  std::optional<CausalConv> conv_;
  std::vector<WeightPtr> gates_;
  WeightPtr recurrent_, bias_, norm_;
};

}  // namespace

std::unique_ptr<Mixer> build(const SlstmConfig& config, const Builder& builder) {
  return std::make_unique<Slstm>(config, builder);
}

}  // namespace tessera::nn
