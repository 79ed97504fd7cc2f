// One logit a token, such as whether it was replaced: s = w act(D h + d) + b.
// Clark et al. 2020, arXiv:2003.10555, sec. 2.
#pragma once

#include "tessera/nn/activation.h"
#include "tessera/nn/head/head_config.h"

namespace tessera::nn {

struct TokenScoreConfig final : HeadConfig {
  Activation act = Activation::gelu;

  bool of_vocabulary() const override { return false; }
  int64_t outputs(const spec::Scope&) const override { return 1; }
  static constexpr auto fields() {
    return std::tuple{spec::field("act", &TokenScoreConfig::act, "activation of the transform")};
  }
  static spec::Info info() {
    return {.summary = "One logit per token, after a transform (replaced token detection).",
            .paper = "Clark et al.: ELECTRA, arXiv:2003.10555",
            .year = 2020,
            .causality = spec::Causality::none,
            .forms = {}};
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("dense", scope.d_model, scope.d_model, true);
    list.add({"weight", {1, scope.d_model}, spec::Init::logits()});
    list.add({"bias", {1}, spec::Init::constant(0), spec::ParamKind::bias});
  }
};

}  // namespace tessera::nn
