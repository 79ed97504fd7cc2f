// Token embedding, with what some families add to it: a factor, absolute positions, token types, a
// norm, a projection from vectors of another width, dropout.
//   x = dropout(W N(scale * E[token] + P[position] + S[type] + U[task]))        W after the sum, or
//   x = dropout(N(scale * W E[token] + P[position] + S[type] + U[task]))        of the token alone
// With norm_of token, N is of the token's part of the sum alone. With n tokens (ngram) W reads
// their concatenated vectors, E[t + n/2], ..., E[t - n/2], with zeros outside of the document:
// MobileBERT's trigrams (Sun et al. 2020, arXiv:2004.02984).
// Token dropout of ESM (Rives et al., PNAS 2021; fair-esm): the vector of the mask token is 0, the
// others are multiplied by (1 - mask_share) / (1 - share of mask tokens in the document), so that
// their sum is what it was in training, where a share of mask_share was masked.
#pragma once

#include <optional>

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

enum class EmbedNormOf {
  sum,
  token,  // before positions and types are added (BlenderBot-small's decoder)
};

enum class EmbedProjection {
  none,
  token,  // of the token's vector alone (OPT 350M)
  sum,    // of all, after the norm (ALBERT, ELECTRA, FNet)
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::EmbedNormOf> {
  using N = nn::EmbedNormOf;
  static constexpr std::array names{std::pair{N::sum, "sum"}, std::pair{N::token, "token"}};
};
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
  EmbedNormOf norm_of = EmbedNormOf::sum;
  double dropout = 0;
  int64_t width = 0, ngram = 1;
  EmbedProjection project = EmbedProjection::none;
  bool project_bias = true;
  int64_t n_tasks = 0, task = 0;
  std::optional<int64_t> mask_id;
  double mask_share = 0;

  static constexpr auto fields() {
    using C = TokenEmbedConfig;
    using spec::field;
    return std::tuple{
        field("scale", &C::scale, "factor on the token vectors (Gemma: sqrt(d_model))"),
        field("width", &C::width, "width of a token's vector; 0 = d_model", {.min = 0}),
        field("ngram", &C::ngram,
              "in an encoder: neighboring tokens whose vectors `project` token reads concatenated, "
              "the "
              "token in the middle; odd (MobileBERT: trigrams, 3)",
              {.min = 1}),
        field("project", &C::project, "what is projected to d_model"),
        field("project_bias", &C::project_bias, "whether the projection has a bias"),
        field("position", &C::position, "absolute positions added here", {.part = "none"}),
        field("n_types", &C::n_types, "token types (BERT segments); 0 = none", {.min = 0}),
        field("n_tasks", &C::n_tasks,
              "tasks with a vector each, of which every token gets one (ERNIE 3); 0 = none",
              {.min = 0}),
        field("task", &C::task, "which of them", {.min = 0}),
        field("mask_id", &C::mask_id,
              "in an encoder: this token's vector is 0, and others are scaled by its share of the "
              "document (ESM's token dropout); null = no such token",
              {.min = 0}),
        field("mask_share", &C::mask_share,
              "share of mask tokens that leaves the others as they are (ESM: 0.12)",
              {.min = 0, .below = 1}),
        field("norm", &C::norm, "norm of the sum, or of the token's part of it"),
        field("norm_of", &C::norm_of, "which of the two"),
        field("dropout", &C::dropout, "probability, in training", {.min = 0, .below = 1})};
  }
  static spec::Info info() {
    return {.summary = "A learned vector per token.",
            .paper = "Bengio et al.: A Neural Probabilistic Language Model, JMLR 2003",
            .year = 2003,
            .forms = {.recurrent = true, .recorded = true}};
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
    if (norm_of == EmbedNormOf::token && !norm)
      fail(ErrorKind::spec, scope.path, "norm_of token without a norm; give one, or leave it out");
    if (ngram > 1 && project != EmbedProjection::token)
      fail(ErrorKind::spec, scope.path, "ngram = {} needs \"project\": \"token\", which reads it",
           ngram);
    if (ngram % 2 == 0)
      fail(ErrorKind::spec, scope.path, "ngram = {}; expected an odd number of tokens", ngram);
    if (ngram > 1 && scope.causal)
      fail(ErrorKind::spec, scope.path,
           "ngram = {} needs an encoder: it reads the tokens that follow; leave it out", ngram);
    if (task > 0 && task >= n_tasks)
      fail(ErrorKind::spec, scope.path, "task = {} of {} tasks; expected less than n_tasks", task,
           n_tasks);
    if (!mask_id && mask_share != 0)
      fail(ErrorKind::spec, scope.path, "mask_share = {} without mask_id; give it, or leave it out",
           mask_share);
    if (mask_id && *mask_id >= scope.vocab)
      fail(ErrorKind::spec, scope.path, "mask_id = {} of a vocabulary of {}", *mask_id,
           scope.vocab);
    if (mask_id && scope.causal)
      fail(ErrorKind::spec, scope.path,
           "mask_id needs an encoder: a decoder does not know the share of the whole document");
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
    list.add_if(n_tasks > 0, {"task.weight",
                              {n_tasks, project == EmbedProjection::sum ? width : scope.d_model},
                              spec::Init::table(),
                              spec::ParamKind::embedding,
                              {spec::Role::vocabulary, spec::Role::none}});
    if (project != EmbedProjection::none)
      list.linear("project", scope.d_model, ngram * width, project_bias);
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
