// Per-layer embeddings (PLE): every layer has a small vector of its own for each token of the
// vocabulary, P wide, and the layer's stream decides how much of it enters.
//   p_l = (N(D^-1/2 W_l e) + P^1/2 E_l[token]) / 2^1/2        the token's vector of layer l
//   y   = W_out (act(W_gate x) * p_l)
// e is the embedding of the token, [D]. The tables E_l of all L layers are one matrix [V, L P] and N
// is one norm, which stand once in the model; a call reads the rows of its tokens once for all
// layers. Gemma 3n and Gemma 4 (Google DeepMind 2025, model card of Gemma 3n).
//
// A branch names both inputs, {"inputs": ["stream", "embedding"]}: x is the first D channels of what
// it reads, e the last D; with one input they are the same.
#pragma once

#include "tessera/nn/activation.h"
#include "tessera/spec/fields.h"

namespace tessera::nn {

struct PerLayerEmbeddingConfig final : spec::Config {
  int64_t width = 0;
  int64_t vocab = 0;
  Activation act = Activation::gelu_tanh;
  spec::Part<spec::Slot::norm> norm;
  std::string share = "per_layer_embedding";

  static constexpr auto fields() {
    using C = PerLayerEmbeddingConfig;
    return std::tuple{
        spec::field("width", &C::width, "P, channels of a token's vector in one layer",
                    {.min = 1, .required = true}),
        spec::field("vocab", &C::vocab,
                    "tokens that have such vectors, the first of the vocabulary; others use those "
                    "of token 0; 0 = all have",
                    {.min = 0}),
        spec::field("act", &C::act, "activation of the gate"),
        spec::field("norm", &C::norm, "N, norm of what follows from the embedding",
                    {.part = "rms_norm"}),
        spec::field("share", &C::share, "id of the tables and the norm: layers that name it share them")};
  }
  static spec::Info info() {
    return {.summary =
                "Per-layer embeddings (PLE): a small vector of the token for each layer, gated by "
                "the stream.",
            .paper = "Google DeepMind: Gemma 3n model card",
            .year = 2025,
            .forms = {.recurrent = true, .recorded = true},
            .any_width = true};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.width = width;
    scope.of_batch = false;
    return scope;
  }
  void complete(const spec::Scope& scope) override {
    if (vocab == 0) vocab = scope.vocab;
  }
  void check(const spec::Scope& scope) const override {
    if (!norm)
      fail(ErrorKind::spec, scope.at("norm").path, "found null; expected a norm, such as rms_norm");
    if (share.empty() ||
        share.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != std::string::npos)
      fail(ErrorKind::spec, scope.at("share").path,
           "id \"{}\"; expected lower-case letters, digits and _", share);
    if (const int64_t reads = scope.input_width(); reads != scope.d_model && reads != 2 * scope.d_model)
      fail(ErrorKind::spec, scope.path,
           "reads {} channels; expected \"inputs\": [\"stream\", \"embedding\"], {} channels", reads,
           2 * scope.d_model);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.linear("gate", width, scope.d_model, /*bias=*/false, spec::Init::content());
    list.linear("context", width, scope.d_model, /*bias=*/false);
    list.linear("out", scope.d_model, width, /*bias=*/false,
                spec::Init::into_stream(scope.n_layers));
    spec::ParamList all = spec::ParamList::shared(share);
    all.add({"token.weight",
             {vocab, scope.n_layers * width},
             spec::Init::table(),
             spec::ParamKind::embedding,
             {spec::Role::vocabulary, spec::Role::in}});
    norm.config->params_under(all, "norm", child_scope(scope, "norm"));
    list.append(all);
  }
};

}  // namespace tessera::nn
