// Gated linear unit: y = W_down (act(W_gate x) * W_up x). SwiGLU is act silu, GEGLU gelu, ReGLU
// relu, GLU sigmoid. Shazeer 2020, arXiv:2002.05202.
// With sparsity p the gate keeps what lies above the p-quantile of a normal distribution of its own
// mean and deviation, less that: g <- relu(g - mean(g) - std(g) z_p), before act (Gemma 3n's
// Gaussian top-k; p = 0.95 leaves about a twentieth of the hidden units).
// With g = min(W_gate x, limit) and u = W_up x clamped to [-limit, limit], in general
//   y = W_down N(act(slope g) / slope * (u + up_offset));
// gpt-oss: silu, slope 1.702, limit 7, offset 1. OpenAI 2025, arXiv:2508.10925. A learned slope is
// the beta of Swish (arXiv:1710.05941), N the inner norm of sub-LN (arXiv:2210.06423); without it,
// nothing.
#pragma once

#include <cmath>

#include "tessera/nn/activation.h"
#include "tessera/nn/ffn/ffn_dropout.h"
#include "tessera/nn/ffn/slope.h"

namespace tessera::nn {

struct GluConfig final : spec::Config, FfnDropout {
  Activation act = Activation::silu;
  int64_t d_hidden = 0;
  bool bias = false;
  bool down_bias = false;
  double slope = 1;
  double limit = 0;
  double up_offset = 0;
  double sparsity = 0;
  bool learned_slope = false;
  spec::Part<spec::Slot::norm> inner_norm;
  double dropout = 0;

  static constexpr auto fields() {
    using C = GluConfig;
    return std::tuple{
        spec::field("act", &C::act, "activation of the gate"),
        spec::field("d_hidden", &C::d_hidden,
                    "hidden width, or a rule such as \"8/3, multiple of 256\" of d_model",
                    {.min = 1, .required = true, .width = true}),
        spec::field("bias", &C::bias, "bias of all three products"),
        spec::field("down_bias", &C::down_bias, "bias of the last product alone (GTE)"),
        spec::field("slope", &C::slope,
                    "s in act(s g) / s: silu with 1.702 approximates gelu (gpt-oss)",
                    {.min = 1e-9}),
        spec::field("limit", &C::limit,
                    "clamps the gate from above and the values on both sides; 0 = it does not",
                    {.min = 0}),
        spec::field("up_offset", &C::up_offset, "added to the values (gpt-oss: 1)"),
        spec::field("sparsity", &C::sparsity,
                    "share of hidden units that the gate's Gaussian top-k sets to 0 (activation "
                    "sparsity, Gemma 3n); 0 = none, below 1",
                    {.min = 0, .below = 1}),
        spec::field("learned_slope", &C::learned_slope, "whether s is learned; of silu alone"),
        spec::field("inner_norm", &C::inner_norm,
                    "norm of the hidden values before the last product (sub-LN)"),
        spec::field("dropout", &C::dropout, "probability on the hidden values, in training",
                    {.min = 0, .below = 1})};
  }
  static spec::Info info() {
    return {.summary =
                "A feed-forward layer whose hidden values are gated (SwiGLU, GEGLU, ReGLU, GLU, "
                "bilinear).",
            .paper = "Shazeer: GLU Variants Improve Transformer, arXiv:2002.05202",
            .year = 2020,
            .forms = {.recurrent = true, .recorded = true},
            .any_width = true};
  }
  double hidden_dropout() const override { return dropout; }
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.width = d_hidden;
    return scope;
  }
  void check(const spec::Scope& scope) const override {
    check_slope(act, slope, learned_slope, scope);
    if (bias && down_bias)
      fail(ErrorKind::spec, scope.path,
           "down_bias together with bias, which covers the last product; leave one of them out");
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("gate", d_hidden, scope.input_width(), bias, spec::Init::content());
    list.linear("up", d_hidden, scope.input_width(), bias, spec::Init::content());
    list.linear("down", scope.d_model, d_hidden, bias || down_bias,
                spec::Init::into_stream(scope.n_layers));
    declare_slope(list, slope, learned_slope);
    if (inner_norm) inner_norm.config->params_under(list, "inner_norm", child_scope(scope, ""));
  }
};

}  // namespace tessera::nn
