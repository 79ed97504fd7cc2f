#include "tessera/nn/mixer/scan/rg_lru.h"

#include "tessera/nn/mixer/convolution/causal_conv.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/form.h"
#include "tessera/ops/weights/head_linear.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/scan/rg_lru.h"

namespace tessera::nn {
namespace {

class RgLru final : public Mixer {
 public:
  RgLru(const RgLruConfig& config, const Builder& builder)
      : config_(config),
        x_(builder, "x"),
        y_(builder, "y"),
        input_gate_(builder, "input_gate"),
        recurrent_gate_(builder, "recurrent_gate"),
        out_(builder, "out"),
        conv_(builder, "conv", kernels::Activation::identity),
        lambda_(builder.weight("lambda")) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const Batch& batch = *context.batch;
    const Tensor c_NW = conv_(x_(x_ND, context), batch, rows, kConv);
    const auto gate = [&](const Linear& g) {
      const Tensor c_NHI = c_NW.unflatten(-1, {-1, g.weight->size(1)});
      return ops::head_linear(c_NHI, *g.weight, g.bias.get(), context.products).flatten(1);
    };
    const Tensor scale_W = 8 * ops::softplus(lambda_->tensor().to(ops::wide(x_ND)));
    const Tensor h_NW =
        scan({c_NW, gate(input_gate_), gate(recurrent_gate_), scale_W}, batch, rows);
    return out_(ops::gated(y_(x_ND, context), h_NW, ops::Activation::gelu_tanh), context);
  }

 private:
  Tensor scan(const ops::RgLru& in, const Batch& batch, const StateRows* rows) const {
    const bool kernels = ops::kernel_serves(ops::Op::rg_lru, in.x_TW);
    if (rows == nullptr && !kernels) return ops::rg_lru(in, lengths_of(batch), config_.chunk);
    const BySegment part(batch);
    return over_segments(batch, kernels, [&](size_t i, const Segment& s) {
      const ops::RgLru mine{part(in.x_TW, i), part(in.in_TW, i), part(in.rec_TW, i), in.scale_W};
      const bool fresh = s.start == 0;
      if (kernels) {
        Tensor state = rows != nullptr ? (*rows)[i]->fixed_in_place(kH)
                                       : at::zeros({config_.width}, in.x_TW.options());
        return ops::rg_lru_kernel(mine, state, fresh);
      }
      Tensor& state = (*rows)[i]->fixed(kH);
      const auto [h, last] = ops::rg_lru_from(mine, config_.chunk, fresh ? Tensor() : state);
      state = last.to(state.scalar_type());
      return h;
    });
  }

  static constexpr size_t kH = 0, kConv = 1;  // as declared in RgLruConfig::state
  RgLruConfig config_;
  Linear x_, y_, input_gate_, recurrent_gate_, out_;
  CausalConv conv_;
  WeightPtr lambda_;
};

}  // namespace

std::unique_ptr<Mixer> build(const RgLruConfig& config, const Builder& builder) {
  return std::make_unique<RgLru>(config, builder);
}

}  // namespace tessera::nn
