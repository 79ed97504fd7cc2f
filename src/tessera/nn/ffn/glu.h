// Gated linear unit: y = W_down (act(W_gate x) * W_up x). SwiGLU is act silu, GEGLU gelu, ReGLU
// relu, GLU sigmoid. Shazeer 2020, arXiv:2002.05202.
// With g = min(W_gate x, limit) and u = W_up x clamped to [-limit, limit], in general
//   y = W_down (act(slope g) / slope * (u + up_offset));
// gpt-oss: silu, slope 1.702, limit 7, offset 1. OpenAI 2025, arXiv:2508.10925.
#pragma once

#include <cmath>

#include "tessera/nn/activation.h"

namespace tessera::nn {

struct GluConfig final : spec::Config {
  Activation act = Activation::silu;
  int64_t d_hidden = 0;
  bool bias = false;
  double slope = 1;
  double limit = 0;
  double up_offset = 0;

  static constexpr auto fields() {
    using C = GluConfig;
    return std::tuple{
        spec::field("act", &C::act, "activation of the gate"),
        spec::field("d_hidden", &C::d_hidden, "hidden width", {.min = 1, .required = true}),
        spec::field("bias", &C::bias, "bias of all three products"),
        spec::field("slope", &C::slope,
                    "s in act(s g) / s: silu with 1.702 approximates gelu (gpt-oss)",
                    {.min = 1e-9}),
        spec::field("limit", &C::limit,
                    "clamps the gate from above and the values on both sides; 0 = it does not",
                    {.min = 0}),
        spec::field("up_offset", &C::up_offset, "added to the values (gpt-oss: 1)")};
  }
  static spec::Info info() {
    return {.summary =
                "A feed-forward layer whose hidden values are gated (SwiGLU, GEGLU, ReGLU, GLU, "
                "bilinear).",
            .paper = "Shazeer: GLU Variants Improve Transformer, arXiv:2002.05202",
            .year = 2020,
            .forms = {.recurrent = true},
            .any_width = true};
  }
  void check(const spec::Scope& scope) const override {
    if (slope != 1 && (act == Activation::relu || act == Activation::identity))
      fail(ErrorKind::spec, scope.path,
           "slope = {} with act {}, for which act(s g) / s is act(g); leave it out", slope,
           spec::enum_name(act));
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("gate", d_hidden, scope.input_width(), bias);
    list.linear("up", d_hidden, scope.input_width(), bias);
    list.linear("down", scope.d_model, d_hidden, bias, spec::Init::into_stream(scope.n_layers));
  }
};

}  // namespace tessera::nn
