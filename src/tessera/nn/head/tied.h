// Output matrix = token embedding: logits = E h, or E P h where token vectors are narrower (OPT
// 350M). Press, Wolf 2016, arXiv:1608.05859.
#pragma once

#include "tessera/nn/head/head_config.h"

namespace tessera::nn {

struct TiedHeadConfig final : HeadConfig {
  int64_t width = 0;

  bool tied() const override { return true; }
  int64_t table_width(const spec::Scope&) const override { return width; }
  static constexpr auto fields() {
    return std::tuple_cat(
        std::tuple{spec::field("width", &TiedHeadConfig::width,
                               "width of the token vectors, to which hidden states are projected "
                               "where it differs; 0 = d_model",
                               {.min = 0})},
        common_fields<TiedHeadConfig>());
  }
  void complete(const spec::Scope& scope) override {
    if (width == 0) width = scope.d_model;
  }
  bool projects(const spec::Scope& scope) const { return width != scope.d_model; }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    if (projects(scope)) list.linear("project", width, scope.d_model, false);
  }
  static spec::Info info() {
    return {
        .summary = "Logits from the transposed token embedding.",
        .paper =
            "Press, Wolf: Using the Output Embedding to Improve Language Models, arXiv:1608.05859",
        .year = 2016,
        .forms = {.recurrent = true}};
  }
};

}  // namespace tessera::nn
