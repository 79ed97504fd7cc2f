#include "tessera/nn/depth/adaptive_computation.h"

#include "tessera/nn/checkpointing.h"
#include "tessera/ops/basic/elementwise.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {
namespace {

class AdaptiveComputation final : public Depth {
 public:
  AdaptiveComputation(const AdaptiveComputationConfig& config, const Builder& builder)
      : config_(config), name_(builder.prefix()) {
    const Builder gate = builder.shared(config.gate);
    weight_ = gate.weight("weight");
    bias_ = gate.weight("bias");
  }

  Tensor forward(const Tensor& x_ND, const DepthLayer& layer, Context& context) const override {
    const Tensor s_ND = layer.run(x_ND, context);
    const auto ones = [&](double value) {
      return at::full({x_ND.size(0), 1}, value, s_ND.options());
    };
    LayerValues& values = context.values;
    // of the steps before: sum of h, 1 where a token has not halted, sum of p s
    const Tensor sum_N1 = layer.first ? ones(0) : values.at(key("sum")),
                 running_N1 = layer.first ? ones(1) : values.at(key("running")),
                 before_ND = layer.first ? at::zeros_like(s_ND) : values.at(key("output"));
    const Tensor h_N1 = ops::activate(ops::linear(s_ND, *weight_, bias_.get(), context.products),
                                      ops::Activation::sigmoid);
    const Tensor halts_N1 = chosen(context, [&] {
      const at::NoGradGuard no_gradients;
      return layer.last ? running_N1.detach()
                        : running_N1 * (sum_N1 + h_N1).ge(1 - config_.threshold).to(h_N1.options());
    });
    const Tensor goes_on_N1 = running_N1 - halts_N1, rest_N1 = 1 - sum_N1;
    const Tensor p_N1 = goes_on_N1 * h_N1 + halts_N1 * rest_N1;
    const Tensor y_ND = before_ND + p_N1 * s_ND;
    if (context.add_loss && config_.ponder > 0)
      context.add_loss("ponder",
                       ops::ordered_sum(running_N1 + halts_N1 * rest_N1) * config_.ponder);
    if (context.add_statistic) {
      const at::NoGradGuard no_gradients;
      context.add_statistic(name_ + ".steps", ops::ordered_sum(running_N1.to(at::kDouble)));
    }
    if (layer.last) return y_ND;
    values.put(key("sum"), sum_N1 + goes_on_N1 * h_N1);
    values.put(key("running"), goes_on_N1);
    values.put(key("output"), y_ND);
    return at::where(running_N1 > 0, s_ND, x_ND);
  }

 private:
  std::string key(const char* what) const { return "loop " + config_.gate + " " + what; }

  AdaptiveComputationConfig config_;
  std::string name_;
  WeightPtr weight_, bias_;
};

}  // namespace

std::unique_ptr<Depth> build(const AdaptiveComputationConfig& config, const Builder& builder) {
  return std::make_unique<AdaptiveComputation>(config, builder);
}

}  // namespace tessera::nn
