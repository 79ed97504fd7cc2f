// BERT's head: logits = W N(act(T h + t)) + b, W the token embedding or a matrix of its own.
// Devlin et al. 2018, arXiv:1810.04805, sec. 3.1.
#pragma once

#include "tessera/nn/activation.h"
#include "tessera/nn/head/head_config.h"

namespace tessera::nn {

struct MaskedLmHeadConfig final : HeadConfig {
  Activation act = Activation::gelu;
  spec::Part<spec::Slot::norm> norm;
  bool is_tied = true;

  bool tied() const override { return is_tied; }
  static constexpr auto fields() {
    using C = MaskedLmHeadConfig;
    return std::tuple_cat(
        std::tuple{
            spec::field("act", &C::act, "activation of the transform"),
            spec::field("norm", &C::norm, "norm of the transform", {.part = "layer_norm"}),
            spec::field("tied", &C::is_tied, "whether the token embedding is the output matrix")},
        common_fields<C>());
  }
  static spec::Info info() {
    return {
        .summary = "A transform with norm before the logits, as masked language models have it.",
        .paper = "Devlin et al.: BERT, arXiv:1810.04805",
        .year = 2018,
        .forms = {.recurrent = true}};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.width = scope.d_model;
    return scope;
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("transform", scope.d_model, scope.d_model, true);
    spec::ParamList child = list.under("norm");
    norm.config->params(child, child_scope(scope, "norm"));
    list.append(child);
    if (!is_tied)
      list.add({"weight",
                {scope.vocab, scope.d_model},
                spec::Init::normal(0.02),
                spec::ParamKind::matrix,
                0});
    list.add({"bias", {scope.vocab}, spec::Init::constant(0), spec::ParamKind::bias, 0});
  }
};

}  // namespace tessera::nn
