// A feed-forward layer with the activation xIELU: y = W_down xielu(W_up x), of hidden values h
//   h > 0:  a_p h^2 + beta h
//   else:   a_n (e^min(h, eps) - 1 - h) + beta h
// with learned a_p = softplus(p) and a_n = beta + softplus(n). Huang and Schlag 2024,
// arXiv:2411.13010; Apertus.
#pragma once

#include <cmath>

#include "tessera/nn/ffn/ffn_dropout.h"

namespace tessera::nn {

struct XieluConfig final : spec::Config, FfnDropout {
  int64_t d_hidden = 0;
  bool bias = false;
  double alpha_p = 0.8;
  double alpha_n = 0.8;
  double beta = 0.5;
  double eps = -1e-6;
  double dropout = 0;

  static constexpr auto fields() {
    using C = XieluConfig;
    return std::tuple{
        spec::field("d_hidden", &C::d_hidden,
                    "hidden width, or a rule such as \"8/3, multiple of 256\" of d_model",
                    {.min = 1, .required = true, .width = true}),
        spec::field("bias", &C::bias, "bias of both products"),
        spec::field("alpha_p", &C::alpha_p, "what a_p begins as", {.min = 1e-6}),
        spec::field("alpha_n", &C::alpha_n, "what a_n begins as, above beta", {.min = 1e-6}),
        spec::field("beta", &C::beta, "slope at 0", {.min = 0}),
        spec::field("eps", &C::eps, "largest exponent of the lower branch", {.max = 0}),
        spec::field("dropout", &C::dropout, "probability on the hidden values, in training",
                    {.min = 0, .below = 1})};
  }
  static spec::Info info() {
    return {
        .summary = "Two products with xIELU between, whose curvatures are learned.",
        .paper = "Huang, Schlag: Deriving Activation Functions Using Integration, arXiv:2411.13010",
        .year = 2024,
        .forms = {.recurrent = true, .recorded = true},
        .any_width = true};
  }
  double hidden_dropout() const override { return dropout; }
  void check(const spec::Scope& scope) const override {
    if (alpha_n <= beta)
      fail(ErrorKind::spec, scope.path, "alpha_n = {}; expected more than beta = {}", alpha_n,
           beta);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("up", d_hidden, scope.input_width(), bias, spec::Init::content());
    list.linear("down", scope.d_model, d_hidden, bias, spec::Init::into_stream(scope.n_layers));
    for (const auto& [name, first] : {std::pair{"alpha_p", alpha_p}, {"alpha_n", alpha_n - beta}})
      list.add({name,
                {1},
                spec::Init::constant(std::log(std::expm1(first))),
                spec::ParamKind::structural});
  }
};

}  // namespace tessera::nn
