// Plain feed-forward layer: y = W_down act(W_up x + b_up) + b_down.
// Vaswani et al. 2017, arXiv:1706.03762, sec. 3.3.
#pragma once

#include <cmath>

#include "tessera/nn/activation.h"

namespace tessera::nn {

struct MlpConfig final : spec::Config {
  Activation act = Activation::gelu;
  int64_t d_hidden = 0;
  bool bias = true;

  static constexpr auto fields() {
    using C = MlpConfig;
    return std::tuple{
        spec::field("act", &C::act, "activation"),
        spec::field("d_hidden", &C::d_hidden, "hidden width", {.min = 1, .required = true}),
        spec::field("bias", &C::bias, "bias of both products")};
  }
  static spec::Info info() {
    return {.summary = "Two products with an activation between.",
            .paper = "Vaswani et al.: Attention Is All You Need, arXiv:1706.03762",
            .year = 2017,
            .forms = {.recurrent = true},
            .any_width = true};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("up", d_hidden, scope.input_width(), bias);
    list.linear("down", scope.d_model, d_hidden, bias, spec::Init::into_stream(scope.n_layers));
  }
};

}  // namespace tessera::nn
