// Output matrix of its own. With unit_rows each row w of it counts as w / |w| (NormHead, Baichuan
// 2: arXiv:2309.10305, sec. 2.4).
#pragma once

#include "tessera/nn/head/head_config.h"

namespace tessera::nn {

struct LinearHeadConfig final : HeadConfig {
  bool bias = false;
  bool unit_rows = false;

  static constexpr auto fields() {
    return std::tuple_cat(
        std::tuple{spec::field("bias", &LinearHeadConfig::bias, "bias of the logits"),
                   spec::field("unit_rows", &LinearHeadConfig::unit_rows,
                               "whether the rows of the matrix are scaled to length 1 (NormHead)")},
        common_fields<LinearHeadConfig>());
  }
  static spec::Info info() {
    return {.summary = "Logits from an output matrix of their own.",
            .paper = "Bengio et al.: A Neural Probabilistic Language Model, JMLR 2003",
            .year = 2003,
            .forms = {.recurrent = true}};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add({"weight",
              {scope.vocab, scope.d_model},
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
