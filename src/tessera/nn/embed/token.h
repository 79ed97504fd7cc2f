// Token embedding, with what some families add to it: a factor, absolute positions, token types, a
// norm, dropout.
//   x = dropout(N(scale * E[token] + P[position] + S[type]))
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

struct TokenEmbedConfig final : spec::Config {
  double scale = 1;
  spec::Part<spec::Slot::position> position;
  int64_t n_types = 0;
  spec::Part<spec::Slot::norm> norm;
  double dropout = 0;

  static constexpr auto fields() {
    using C = TokenEmbedConfig;
    using spec::field;
    return std::tuple{
        field("scale", &C::scale, "factor on the token vectors (Gemma: sqrt(d_model))"),
        field("position", &C::position, "absolute positions added here", {.part = "none"}),
        field("n_types", &C::n_types, "token types (BERT segments); 0 = none", {.min = 0}),
        field("norm", &C::norm, "norm of the sum"),
        field("dropout", &C::dropout, "probability, in training", {.min = 0})};
  }
  static spec::Info info() {
    return {.summary = "A learned vector per token.",
            .paper = "Bengio et al.: A Neural Probabilistic Language Model, JMLR 2003",
            .year = 2003,
            .forms = {.recurrent = true}};
  }
  spec::Scope child_scope(spec::Scope scope, std::string_view name) const {
    scope.width = scope.d_model;
    if (name == "position") scope.places = {.embedding = true};
    return scope;
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add({"token.weight",
              {scope.vocab, scope.d_model},
              spec::Init::normal(0.02),
              spec::ParamKind::embedding,
              0});
    if (n_types > 0)
      list.add({"type.weight",
                {n_types, scope.d_model},
                spec::Init::normal(0.02),
                spec::ParamKind::embedding});
    for (const auto& [name, part] :
         {std::pair{"position", static_cast<const spec::AnyPart*>(&position)},
          std::pair{"norm", static_cast<const spec::AnyPart*>(&norm)}}) {
      if (!*part) continue;
      spec::ParamList child = list.under(name);
      part->config->params(child, child_scope(scope, name));
      list.append(child);
    }
  }
};

}  // namespace tessera::nn
