// Token embedding, with what some families add to it: a factor, absolute positions, token types, a
// norm, a projection from vectors of another width, dropout.
//   x = dropout(W N(scale * E[token] + P[position] + S[type]))        W after the sum, or
//   x = dropout(N(scale * W E[token] + P[position] + S[type]))        of the token alone
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

enum class EmbedProjection {
  none,
  token,  // of the token's vector alone (OPT 350M)
  sum,    // of all, after the norm (ALBERT, ELECTRA, FNet)
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::EmbedProjection> {
  using P = nn::EmbedProjection;
  static constexpr std::array names{std::pair{P::none, "none"}, std::pair{P::token, "token"},
                                    std::pair{P::sum, "sum"}};
};

namespace tessera::nn {

struct TokenEmbedConfig final : spec::Config {
  double scale = 1;
  spec::Part<spec::Slot::position> position;
  int64_t n_types = 0;
  spec::Part<spec::Slot::norm> norm;
  double dropout = 0;
  int64_t width = 0;
  EmbedProjection project = EmbedProjection::none;
  bool project_bias = true;

  static constexpr auto fields() {
    using C = TokenEmbedConfig;
    using spec::field;
    return std::tuple{
        field("scale", &C::scale, "factor on the token vectors (Gemma: sqrt(d_model))"),
        field("width", &C::width, "width of a token's vector; 0 = d_model", {.min = 0}),
        field("project", &C::project, "what is projected to d_model"),
        field("project_bias", &C::project_bias, "whether the projection has a bias"),
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
    scope.width = project == EmbedProjection::sum && width > 0 ? width : scope.d_model;
    if (name == "position") scope.places = {.embedding = true};
    return scope;
  }
  void complete(const spec::Scope& scope) override {
    if (width == 0) width = scope.d_model;
  }
  void check(const spec::Scope& scope) const override {
    if (project == EmbedProjection::none && width != scope.d_model)
      fail(ErrorKind::spec, scope.path,
           "width = {} differs from d_model = {}; give \"project\": \"sum\" or \"token\"", width,
           scope.d_model);
    if (project == EmbedProjection::none && !project_bias)
      fail(ErrorKind::spec, scope.path,
           "project_bias = false without a projection; set project, or leave it out");
  }
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override {
    if (!position) return {};
    return position.config->state(child_scope(scope, "position"));
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    list.add({"token.weight",
              {scope.vocab, width},
              spec::Init::table(),
              spec::ParamKind::embedding,
              {spec::Role::vocabulary, spec::Role::in}});
    list.add_if(n_types > 0, {"type.weight",
                              {n_types, project == EmbedProjection::sum ? width : scope.d_model},
                              spec::Init::table(),
                              spec::ParamKind::embedding,
                              {spec::Role::vocabulary, spec::Role::none}});
    if (project != EmbedProjection::none)
      list.linear("project", scope.d_model, width, project_bias);
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
