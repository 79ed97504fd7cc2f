// One vector per document: p = act(W h + b), or act(h), with h of its first token, of its last one,
// or the mean or the largest values of all.
// Devlin et al. 2018, arXiv:1810.04805, sec. 3.1 ("the final hidden vector of [CLS]").
#pragma once

#include "tessera/nn/activation.h"
#include "tessera/nn/head/head_config.h"

namespace tessera::nn {

struct PoolerConfig final : HeadConfig {
  Activation act = Activation::tanh;
  bool dense = true;
  PoolOf of = PoolOf::first;

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
                    "mean or the largest values of all")};
  }
  static spec::Info info() {
    return {.summary = "A vector per document from the hidden states of its tokens.",
            .paper = "Devlin et al.: BERT, arXiv:1810.04805",
            .year = 2018,
            .causality = spec::Causality::none,
            .forms = {}};
  }
  void check(const spec::Scope& scope) const override {
    if (scope.causal && of == PoolOf::first)
      fail(ErrorKind::spec, scope.at("of").path,
           "\"first\" needs an encoder: a decoder's first token has seen nothing but itself; "
           "expected \"last\", \"mean\" or \"max\"");
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add_if(dense, {"weight", {scope.d_model, scope.d_model}, spec::Init::product()});
    list.add_if(dense, {"bias", {scope.d_model}, spec::Init::constant(0), spec::ParamKind::bias});
  }
};

}  // namespace tessera::nn
