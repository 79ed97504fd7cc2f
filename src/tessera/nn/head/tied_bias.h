// Output matrix = token embedding, with a bias of its own per token.
// Press, Wolf 2016, arXiv:1608.05859; the bias is that of Marian and BART (`final_logits_bias`).
#pragma once

#include "tessera/nn/head/head_config.h"

namespace tessera::nn {

struct TiedBiasHeadConfig final : HeadConfig {
  bool tied() const override { return true; }
  static constexpr auto fields() { return common_fields<TiedBiasHeadConfig>(); }
  static spec::Info info() {
    return {
        .summary = "Logits from the transposed token embedding, plus a learned bias per token.",
        .paper =
            "Press, Wolf: Using the Output Embedding to Improve Language Models, arXiv:1608.05859",
        .year = 2016,
        .forms = {.recurrent = true}};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add({"bias", {scope.vocab}, spec::Init::constant(0), spec::ParamKind::bias, 0});
  }
};

}  // namespace tessera::nn
