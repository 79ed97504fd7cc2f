// Output matrix = token embedding: logits = E h + b, or E P h + b where token vectors are narrower
// (OPT 350M). The bias, where there is one, is the head's own.
// Press, Wolf 2016, arXiv:1608.05859.
#pragma once

#include "tessera/nn/head/head_config.h"

namespace tessera::nn {

struct TiedHeadConfig final : HeadConfig {
  bool bias = false;
  int64_t width = 0;

  bool tied() const override { return true; }
  int64_t table_width(const spec::Scope&) const override { return width; }
  static constexpr auto fields() {
    using C = TiedHeadConfig;
    return std::tuple_cat(
        std::tuple{spec::field("bias", &C::bias, "bias of the logits"),
                   spec::field("width", &C::width,
                               "width of the token vectors, to which hidden states are projected "
                               "where it differs; 0 = d_model",
                               {.min = 0})},
        common_fields<C>());
  }
  void complete(const spec::Scope& scope) override {
    if (width == 0) width = scope.d_model;
  }
  bool projects(const spec::Scope& scope) const { return width != scope.d_model; }
  static spec::Info info() {
    return {
        .summary = "Logits from the transposed token embedding.",
        .paper =
            "Press, Wolf: Using the Output Embedding to Improve Language Models, arXiv:1608.05859",
        .year = 2016,
        .forms = {.recurrent = true}};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    if (projects(scope)) list.linear("project", width, scope.d_model, false);
    list.add_if(bias, {"bias",
                       {scope.vocab},
                       spec::Init::constant(0),
                       spec::ParamKind::bias,
                       {spec::Role::vocabulary}});
  }
};

}  // namespace tessera::nn
