// Gated linear unit: y = W_down (act(W_gate x) * W_up x). SwiGLU is act silu, GEGLU gelu, ReGLU
// relu, GLU sigmoid. Shazeer 2020, arXiv:2002.05202.
#pragma once

#include <cmath>

#include "tessera/nn/activation.h"

namespace tessera::nn {

struct GluConfig final : spec::Config {
  Activation act = Activation::silu;
  int64_t d_hidden = 0;
  bool bias = false;

  static constexpr auto fields() {
    using C = GluConfig;
    return std::tuple{
        spec::field("act", &C::act, "activation of the gate"),
        spec::field("d_hidden", &C::d_hidden, "hidden width", {.min = 1, .required = true}),
        spec::field("bias", &C::bias, "bias of all three products")};
  }
  static spec::Info info() {
    return {.summary =
                "A feed-forward layer whose hidden values are gated (SwiGLU, GEGLU, ReGLU, GLU, "
                "bilinear).",
            .paper = "Shazeer: GLU Variants Improve Transformer, arXiv:2002.05202",
            .year = 2020,
            .forms = {.recurrent = true}};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("gate", d_hidden, scope.d_model, bias);
    list.linear("up", d_hidden, scope.d_model, bias);
    list.linear("down", scope.d_model, d_hidden, bias,
                spec::Init::normal(0.02 / std::sqrt(2.0 * static_cast<double>(scope.n_layers))));
  }
};

}  // namespace tessera::nn
