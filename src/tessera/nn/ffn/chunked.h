// A feed-forward layer that is computed in slices of a few tokens: y = [f(x_1), f(x_2), ...], equal
// to f(x) for every length and slice, because f reads one token at a time.
// Kitaev, Kaiser, Levskaya 2020, arXiv:2001.04451, sec. 3 (Reformer). Attention 13.4.
//
// What it saves are hidden activations: of `chunk` tokens at a time instead of all tokens of the
// call. In training the slices are computed again in the backward pass, so between the passes the
// layer keeps its input alone, for one more forward pass of it. The input and output, [N, d_model]
// each, are as large as ever; no product becomes smaller, so small slices are slow.
//
// The parameters have the names of `inner`, as if it were alone: a checkpoint fits both.
#pragma once

#include "tessera/nn/ffn/ffn_dropout.h"
#include "tessera/nn/ffn/per_layer_embedding.h"
#include "tessera/nn/router/router_config.h"

namespace tessera::nn {

struct ChunkedFfnConfig final : spec::Config {
  int64_t chunk = 64;
  spec::Part<spec::Slot::ffn> inner;

  static constexpr auto fields() {
    using C = ChunkedFfnConfig;
    return std::tuple{
        spec::field("chunk", &C::chunk,
                    "tokens of a slice; 0 = all at once, nothing is computed again", {.min = 0}),
        spec::field("inner", &C::inner, "the feed-forward layer", {.required = true})};
  }
  static spec::Info info() {
    return {
        .summary = "A feed-forward layer in slices of a few tokens, to keep fewer activations.",
        .paper = "Kitaev, Kaiser, Levskaya: Reformer: The Efficient Transformer, arXiv:2001.04451",
        .year = 2020,
        .forms = {.recurrent = true, .recorded = true}};
  }
  void check(const spec::Scope& scope) const override {
    if (!inner)
      fail(ErrorKind::spec, scope.path + ".inner", "found null; expected a feed-forward layer");
    if (chunk > 0) FfnDropout::refuse(inner, "slices", scope.at("inner"));
    spec::for_each_part(inner, [&](const spec::AnyPart& part) {
      const auto* router = dynamic_cast<const RouterConfig*>(part.config.get());
      if (chunk > 0 && router != nullptr && !router->by_token())
        fail(ErrorKind::spec, scope.path + ".inner",
             "router \"{}\" reads the tokens of a whole call, which slices cut; expected one that "
             "reads a token alone, or the slices inside the experts",
             part.type());
      if (dynamic_cast<const PerLayerEmbeddingConfig*>(part.config.get()) != nullptr)
        fail(ErrorKind::spec, scope.path + ".inner",
             "\"{}\" reads the ids of a whole call, which slices cut; expected it in a branch of "
             "its own",
             part.type());
    });
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    inner.config->params(list, scope);
  }
  double extra_flops(const spec::Scope& scope, int64_t context) const override {
    return inner.config->extra_flops(scope, context);
  }
};

}  // namespace tessera::nn
