#include "tessera/nn/mixer/attention/head_gate.h"

#include <algorithm>

#include "tessera/kernels/basic/rowwise.h"
#include "tessera/ops/basic/pointwise.h"
#include "tessera/ops/basic/softplus.h"

namespace tessera::nn {

HeadGate::HeadGate(const Builder& builder, const OutputGateConfig& config)
    : at_(config.gate_at), act_(config.gate_act) {
  if (config.gates()) projection_ = Linear(builder, "gate");
}

Tensor HeadGate::operator()(const Tensor& y,
                            const ops::SharedInput& x_ND,
                            GatePlace here,
                            const Context& context) const {
  if (!projection_.weight || at_ != here) return y;
  const Tensor z = projection_(x_ND, context);
  const Tensor gate = act_ == GateActivation::softplus ? ops::softplus(z)
                      : act_ == GateActivation::silu   ? ops::activate(z, ops::Activation::silu)
                                                       : ops::activate(z, ops::Activation::sigmoid);
  return y * (y.dim() == 3 ? gate.reshape({y.size(0), y.size(1), -1}) : gate);
}

HeadGateStep HeadGate::step(StepWeights& weights) const {
  HeadGateStep out{std::nullopt, at_, act_};
  if (projection_.weight) out.product = weights.product(projection_);
  return out;
}

void HeadGateStep::operator()(
    float* gate, int64_t first, int64_t count, int64_t heads, int64_t width, float* y) const {
  const int64_t of_token = product->rows(), of_head = of_token / heads;
  float* g = gate + first * of_token;
  if (act == GateActivation::softplus)
    std::transform(g, g + count * of_token, g, ops::softplus_of);
  else
    kernels::act(
        act == GateActivation::silu ? kernels::Activation::silu : kernels::Activation::sigmoid, g,
        count * of_token, g);
  y += first * heads * width;
  for (int64_t i = 0; i < count * heads; ++i, g += of_head, y += width)
    for (int64_t j = 0; j < width; ++j) y[j] *= of_head == 1 ? g[0] : g[j];
}

}  // namespace tessera::nn
