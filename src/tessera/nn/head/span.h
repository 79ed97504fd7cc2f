// Where an answer begins and ends in a text: two logits a token, s = W h + b; each of the two is a
// distribution over the tokens of a document. Where asked after a transform, of N(act(T h + t)).
// Devlin et al. 2018, arXiv:1810.04805, sec. 4.2.
#pragma once

#include "tessera/nn/head/transformed_head.h"

namespace tessera::nn {

struct SpanHeadConfig final : TransformedHeadConfig {
  bool bias = true;

  bool of_vocabulary() const override { return false; }
  int64_t outputs(const spec::Scope&) const override { return 2; }
  static constexpr auto fields() {
    return std::tuple_cat(
        std::tuple{spec::field("bias", &SpanHeadConfig::bias, "bias of the logits")},
        transform_fields<SpanHeadConfig>());
  }
  static spec::Info info() {
    return {.summary = "Logits of the first and the last token of an answer, for every token.",
            .paper = "Devlin et al.: BERT, arXiv:1810.04805",
            .year = 2018,
            .causality = spec::Causality::none,
            .forms = {}};
  }
  void check(const spec::Scope& scope) const override { check_transform(scope); }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    declare_transform(list, scope);
    list.add({"weight", {2, scope.d_model}, spec::Init::logits()});
    list.add_if(bias, {"bias", {2}, spec::Init::constant(0), spec::ParamKind::bias});
  }
};

}  // namespace tessera::nn
