// Output matrix = token embedding; a bias, where there is one, is the head's own.
// Press, Wolf 2016, arXiv:1608.05859.
#pragma once

#include "tessera/nn/head/head_config.h"

namespace tessera::nn {

struct TiedHeadConfig final : HeadConfig {
  bool bias = false;

  bool tied() const override { return true; }
  static constexpr auto fields() {
    return std::tuple_cat(
        std::tuple{spec::field("bias", &TiedHeadConfig::bias, "bias of the logits")},
        common_fields<TiedHeadConfig>());
  }
  static spec::Info info() {
    return {
        .summary = "Logits from the transposed token embedding.",
        .paper =
            "Press, Wolf: Using the Output Embedding to Improve Language Models, arXiv:1608.05859",
        .year = 2016,
        .forms = {.recurrent = true}};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    if (bias) list.add({"bias", {scope.vocab}, spec::Init::constant(0), spec::ParamKind::bias, 0});
  }
};

}  // namespace tessera::nn
