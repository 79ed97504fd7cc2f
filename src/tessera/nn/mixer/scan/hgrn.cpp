#include "tessera/nn/mixer/scan/hgrn.h"

#include "tessera/nn/mixer/convolution/causal_conv.h"
#include "tessera/nn/mixer/linear/lower_bound_table.h"
#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/form.h"
#include "tessera/ops/scan/channel_scan.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

class Hgrn final : public Mixer {
 public:
  Hgrn(const HgrnConfig& config, const Builder& builder)
      : config_(config),
        i_(builder, "i"),
        f_(builder, "f"),
        g_(builder, "g"),
        o_(builder, "o"),
        norm_(builder.weight("norm.weight")),
        bounds_(config.lower_bound, HgrnConfig::kShared, config.width, builder) {
    if (config.d_conv > 0) conv_.emplace(builder, "conv", ops::Activation::identity);
  }

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const Batch& batch = *context.batch;
    const auto type = ops::wide(x_ND);
    Tensor if_NC = at::cat({i_(x_ND, context), f_(x_ND, context)}, -1);
    if (conv_) if_NC = (*conv_)(if_NC, batch, rows, kConv);
    const auto parts = if_NC.split_with_sizes({config_.width, config_.width}, -1);
    // g and 1 - g = (1 - lb) sigmoid(-f), each without the other's rounding
    const Tensor f_NW = parts[1].to(type), bound_W = bounds_(f_NW);
    Tensor keep_NW = ops::activate(f_NW, ops::Activation::sigmoid),
           write_NW = ops::activate(-f_NW, ops::Activation::sigmoid);
    if (bound_W.defined()) {
      const Tensor bound_NW = ops::spread(bound_W, f_NW);
      keep_NW = bound_NW + (1 - bound_NW) * keep_NW;
      write_NW = (1 - bound_NW) * write_NW;
    }
    const Tensor u_NW = ops::gated(parts[0].to(type), write_NW, ops::Activation::silu);
    const Tensor h_NW =
        scan(keep_NW, u_NW, batch, rows, ops::kernel_serves(ops::Op::channel_scan, x_ND))
            .to(x_ND.scalar_type());
    const Tensor normed_NW = ops::rms_norm(h_NW, norm_->tensor(), 0, config_.norm_eps);
    return o_(ops::gated(g_(x_ND, context), normed_NW, ops::Activation::silu), context);
  }

 private:
  Tensor scan(const Tensor& a_NW,
              const Tensor& b_NW,
              const Batch& batch,
              const StateRows* rows,
              bool kernels) const {
    if (rows == nullptr && !kernels)
      return ops::channel_scan(a_NW, b_NW, lengths_of(batch), config_.chunk);
    const BySegment part(batch);
    return over_segments(batch, kernels, [&](size_t i, const Segment&) {
      const Tensor a = part(a_NW, i), b = part(b_NW, i);
      if (kernels) {
        Tensor state = rows != nullptr ? (*rows)[i]->fixed_in_place(kH)
                                       : at::zeros({config_.width}, a.options());
        return ops::channel_scan_kernel(a, b, state);
      }
      Tensor& state = (*rows)[i]->fixed(kH);
      const auto [h, last] = ops::channel_scan_from(a, b, config_.chunk, state.to(a.scalar_type()));
      state = last.to(state.scalar_type());
      return h;
    });
  }

  static constexpr size_t kH = 0, kConv = 1;  // as declared in HgrnConfig::state
  HgrnConfig config_;
  Linear i_, f_, g_, o_;
  WeightPtr norm_;
  LowerBoundTable bounds_;
  std::optional<CausalConv> conv_;
};

}  // namespace

std::unique_ptr<Mixer> build(const HgrnConfig& config, const Builder& builder) {
  return std::make_unique<Hgrn>(config, builder);
}

}  // namespace tessera::nn
