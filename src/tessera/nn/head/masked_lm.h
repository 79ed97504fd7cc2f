// BERT's head: logits = W N(act(T h + t)) + b (t and b optional), W the token embedding or a matrix
// of its own. With a rest, the transform makes further channels, which a second matrix R reads:
// logits = [W, R] N(act(T h + t)) + b. With d_hidden another layer precedes the transform:
// act(T act(U h + u) + t), where u is there if t is (UltraBERT). Devlin et al. 2018,
// arXiv:1810.04805, sec. 3.1; the rest: Sun et al. 2020, arXiv:2004.02984 (MobileBERT, whose token
// vectors are narrower than d_model).
#pragma once

#include "tessera/nn/activation.h"
#include "tessera/nn/head/head_config.h"

namespace tessera::nn {

struct MaskedLmHeadConfig final : HeadConfig {
  Activation act = Activation::gelu;
  spec::Part<spec::Slot::norm> norm;
  bool is_tied = true;
  int64_t width = 0, rest = 0, d_hidden = 0;
  bool transform_bias = true, bias = true;

  bool tied() const override { return is_tied; }
  int64_t table_width(const spec::Scope&) const override { return width; }
  static constexpr auto fields() {
    using C = MaskedLmHeadConfig;
    return std::tuple_cat(
        std::tuple{
            spec::field("act", &C::act, "activation of the transform"),
            spec::field("norm", &C::norm, "norm of the transform; null = none",
                        {.part = "layer_norm"}),
            spec::field("tied", &C::is_tied, "whether the token embedding is the output matrix"),
            spec::field("width", &C::width,
                        "width after the transform (ALBERT, ELECTRA: that of the token vectors); "
                        "0 = d_model",
                        {.min = 0}),
            spec::field("rest", &C::rest,
                        "further channels of the transform, which an output matrix of their own "
                        "reads (MobileBERT: d_model - width); 0 = none",
                        {.min = 0}),
            spec::field("d_hidden", &C::d_hidden,
                        "width of a layer before the transform, with the same activation; 0 = none",
                        {.min = 0}),
            spec::field("transform_bias", &C::transform_bias, "bias of the transform"),
            spec::field("bias", &C::bias, "bias of the logits")},
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
    scope.width = width + rest;
    return scope;
  }
  void complete(const spec::Scope& scope) override {
    if (width == 0) width = scope.d_model;
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    if (d_hidden > 0) list.linear("hidden", d_hidden, scope.d_model, transform_bias);
    list.linear("transform", width + rest, d_hidden > 0 ? d_hidden : scope.d_model, transform_bias);
    if (norm) norm.config->params_under(list, "norm", child_scope(scope, "norm"));
    if (!is_tied)
      list.add({"weight",
                {scope.vocab, width},
                spec::Init::logits(),
                spec::ParamKind::matrix,
                {spec::Role::vocabulary, spec::Role::in}});
    list.add_if(rest > 0, {"rest.weight",
                           {scope.vocab, rest},
                           spec::Init::logits(),
                           spec::ParamKind::matrix,
                           {spec::Role::vocabulary, spec::Role::in}});
    list.add_if(bias, {"bias",
                       {scope.vocab},
                       spec::Init::constant(0),
                       spec::ParamKind::bias,
                       {spec::Role::vocabulary}});
  }
};

}  // namespace tessera::nn
