// Layer norm: y = (x - mean) / sqrt(var + eps) * w + b, variance divided by d.
// Ba, Kiros, Hinton 2016, arXiv:1607.06450.
#pragma once

#include "tessera/nn/norm/norm_weight.h"

namespace tessera::nn {

struct LayerNormConfig final : spec::Config {
  double eps = 1e-5;
  NormWeight weight = NormWeight::plain;
  bool bias = true;

  static constexpr auto fields() {
    using C = LayerNormConfig;
    return std::tuple{spec::field("eps", &C::eps, "added to the variance", {.min = 0}),
                      spec::field("weight", &C::weight, "how the weight enters"),
                      spec::field("bias", &C::bias, "whether a bias is added")};
  }
  static spec::Info info() {
    return {.summary = "Removes the mean of every token and scales it to unit variance.",
            .paper = "Ba, Kiros, Hinton: Layer Normalization, arXiv:1607.06450",
            .year = 2016,
            .forms = {.recurrent = true, .recorded = true}};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add_if(weight != NormWeight::none,
                {"weight",
                 {scope.width},
                 spec::Init::constant(weight == NormWeight::plain ? 1 : 0),
                 spec::ParamKind::norm});
    list.add_if(bias, {"bias", {scope.width}, spec::Init::constant(0), spec::ParamKind::bias});
  }
};

}  // namespace tessera::nn
