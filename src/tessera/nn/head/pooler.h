// One vector per document: p = N(act(W h + b)), or N(act(h)), with h of its first token, of its
// last one, or the mean or the largest values of all; late: the mean (...) of act(W h + b) of all
// tokens. Devlin et al. 2018, arXiv:1810.04805, sec. 3.1 ("the final hidden vector of [CLS]").
#pragma once

#include "tessera/nn/activation.h"
#include "tessera/nn/head/head_config.h"

namespace tessera::nn {

struct PoolerConfig final : HeadConfig {
  Activation act = Activation::tanh;
  bool dense = true;
  PoolOf of = PoolOf::first;
  bool bias = true, late = false;
  spec::Part<spec::Slot::norm> norm;

  HeadInput reads() const override { return HeadInput::documents; }
  bool of_vocabulary() const override { return false; }
  int64_t outputs(const spec::Scope& scope) const override { return scope.d_model; }
  static constexpr auto fields() {
    return std::tuple{
        spec::field("act", &PoolerConfig::act, "activation (BERT tanh, DeBERTa gelu)"),
        spec::field("dense", &PoolerConfig::dense,
                    "whether it has W and b; with act identity, what is pooled is the vector "
                    "without"),
        spec::field("of", &PoolerConfig::of,
                    "what stands for a document: its first token, its last one (decoders), or the "
                    "mean or the largest values of all"),
        spec::field("bias", &PoolerConfig::bias, "whether W has a bias b"),
        spec::field("norm", &PoolerConfig::norm, "norm of the vector (ModernBERT)"),
        spec::field("late", &PoolerConfig::late,
                    "whether tokens are pooled after W, act and norm (EuroBERT), not before")};
  }
  static spec::Info info() {
    return {.summary = "A vector per document from the hidden states of its tokens.",
            .paper = "Devlin et al.: BERT, arXiv:1810.04805",
            .year = 2018,
            .causality = spec::Causality::none,
            .forms = {}};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.width = scope.d_model;
    return scope;
  }
  void check(const spec::Scope& scope) const override {
    if (scope.causal && of == PoolOf::first)
      fail(ErrorKind::spec, scope.at("of").path,
           "\"first\" needs an encoder: a decoder's first token has seen nothing but itself; "
           "expected \"last\", \"mean\" or \"max\"");
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add_if(dense, {"weight", {scope.d_model, scope.d_model}, spec::Init::product()});
    list.add_if(dense && bias,
                {"bias", {scope.d_model}, spec::Init::constant(0), spec::ParamKind::bias});
    if (norm) norm.config->params_under(list, "norm", child_scope(scope, "norm"));
  }
};

}  // namespace tessera::nn
