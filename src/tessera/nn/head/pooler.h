// One vector per document, from its first token: p = act(W h_0 + b), or act(h_0).
// Devlin et al. 2018, arXiv:1810.04805, sec. 3.1 ("the final hidden vector of [CLS]").
#pragma once

#include "tessera/nn/activation.h"
#include "tessera/nn/head/head_config.h"

namespace tessera::nn {

struct PoolerConfig final : HeadConfig {
  Activation act = Activation::tanh;
  bool dense = true;

  HeadInput reads() const override { return HeadInput::first_tokens; }
  bool of_vocabulary() const override { return false; }
  int64_t outputs(const spec::Scope& scope) const override { return scope.d_model; }
  static constexpr auto fields() {
    return std::tuple{
        spec::field("act", &PoolerConfig::act, "activation (BERT tanh, DeBERTa gelu)"),
        spec::field("dense", &PoolerConfig::dense,
                    "whether it has W and b; with act identity, the first token is the vector "
                    "without")};
  }
  static spec::Info info() {
    return {.summary = "A vector per document from the hidden state of its first token.",
            .paper = "Devlin et al.: BERT, arXiv:1810.04805",
            .year = 2018,
            .causality = spec::Causality::none,
            .forms = {}};
  }
  void check(const spec::Scope& scope) const override { require_encoder("pooler", scope); }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add_if(dense, {"weight", {scope.d_model, scope.d_model}, spec::Init::product()});
    list.add_if(dense, {"bias", {scope.d_model}, spec::Init::constant(0), spec::ParamKind::bias});
  }
};

}  // namespace tessera::nn
