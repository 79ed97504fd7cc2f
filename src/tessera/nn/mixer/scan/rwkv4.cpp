#include "tessera/nn/mixer/scan/rwkv4.h"

#include "tessera/nn/mixer/segments.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/form.h"
#include "tessera/ops/scan/rwkv4.h"

namespace tessera::nn {
namespace {

class Rwkv4 final : public Mixer {
 public:
  Rwkv4(const Rwkv4Config& config, const Builder& builder)
      : config_(config),
        k_(builder, "k"),
        v_(builder, "v"),
        r_(builder, "r"),
        out_(builder, "out"),
        mix_k_(builder.weight("mix_k")),
        mix_v_(builder.weight("mix_v")),
        mix_r_(builder.weight("mix_r")),
        decay_(builder.weight("time_decay")),
        first_(builder.weight("time_first")) {}

  Tensor forward(const Tensor& x_ND, Context& context, const StateRows* rows) const override {
    const Batch& batch = *context.batch;
    const Tensor before_ND = token_shift(x_ND, batch, rows, kShift);
    const auto mixed = [&](const WeightPtr& mix) {
      const Tensor mu = ops::spread(mix->tensor().to(ops::wide(x_ND)), x_ND);
      return (x_ND * mu + before_ND * (1 - mu)).to(x_ND.scalar_type());
    };
    const auto type = ops::wide(x_ND);
    const Tensor y_NC = average({k_(mixed(mix_k_), context), v_(mixed(mix_v_), context),
                                 -decay_->tensor().to(type).exp(), first_->tensor().to(type)},
                                batch, rows);
    return out_(ops::gated(r_(mixed(mix_r_), context), y_NC, ops::Activation::sigmoid), context);
  }

 private:
  Tensor average(const ops::Wkv4& in, const Batch& batch, const StateRows* rows) const {
    const bool kernels = ops::kernel_serves(ops::Op::wkv4, in.k_TC);
    if (rows == nullptr && !kernels) return ops::wkv4(in, lengths_of(batch));
    const BySegment part(batch);
    return over_segments(batch, kernels, [&](size_t i, const Segment& s) {
      const ops::Wkv4 mine{part(in.k_TC, i), part(in.v_TC, i), in.w_C, in.u_C};
      const bool fresh = s.start == 0;
      if (kernels) {
        Tensor state = rows != nullptr ? (*rows)[i]->fixed_in_place(kWkv)
                                       : at::zeros({3, config_.width}, in.k_TC.options());
        return ops::wkv4_kernel(mine, state, fresh);
      }
      Tensor& state = (*rows)[i]->fixed(kWkv);
      const auto [y, after] = ops::wkv4_from(mine, fresh ? Tensor() : state);
      state = after.to(state.scalar_type());
      return y;
    });
  }

  static constexpr size_t kWkv = 0, kShift = 1;  // as declared in Rwkv4Config::state
  Rwkv4Config config_;
  Linear k_, v_, r_, out_;
  WeightPtr mix_k_, mix_v_, mix_r_, decay_, first_;
};

}  // namespace

std::unique_ptr<Mixer> build(const Rwkv4Config& config, const Builder& builder) {
  return std::make_unique<Rwkv4>(config, builder);
}

}  // namespace tessera::nn
