#include <algorithm>

#include "tessera/nn/mixer/attention/attention_experts.h"
#include "tessera/nn/mixer/heads.h"
#include "tessera/spec/kv_type.h"

namespace tessera::nn {

void AttentionExpertsConfig::complete(const spec::Scope& scope) {
  require_heads_divide(head_dim, n_heads, scope.d_model, scope);
  head_dim = width_of_head(scope);
}

void AttentionExpertsConfig::check(const spec::Scope& scope) const {
  if (!router)
    fail(ErrorKind::spec, scope.at("router").path,
         "found null; expected a router, such as \"top_k\"");
  if (!router.as<RouterConfig>().chooses())
    fail(ErrorKind::spec, scope.at("router").path,
         "\"{}\" mixes tokens and chooses no experts for them; expected one that chooses, such as "
         "\"top_k\"",
         router.type());
  check_pattern(pattern, position, n_heads, scope);
  check_one_projection(pattern, "attention_experts", scope);
  if (!pattern_config().same_for_heads())
    fail(ErrorKind::spec, scope.at("pattern").path,
         "\"{}\" differs from head to head, and a token's heads are those that its router chooses; "
         "expected one that is the same for all",
         pattern.type());
}

double AttentionExpertsConfig::used(const spec::Scope& scope) const {
  return std::min(static_cast<double>(n_experts),
                  router.as<RouterConfig>().used(child_scope(scope, "router")));
}

void AttentionExpertsConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const int64_t width = n_heads * head_dim;
  router.config->params_under(list, "router", child_scope(scope, "router"));
  const auto experts = [&](const char* name, int64_t out, int64_t in, spec::Init init) {
    spec::ParamDecl decl{name,
                         {n_experts, out, in},
                         std::move(init),
                         spec::ParamKind::matrix,
                         {spec::Role::expert, spec::Role::out, spec::Role::in}};
    decl.share = used(scope) / static_cast<double>(n_experts);
    list.add(std::move(decl));
  };
  experts("q.weight", width, scope.d_model, spec::Init::query(head_dim));
  list.without("q.bias");
  list.linear("k", width, scope.d_model, false);
  list.linear("v", width, scope.d_model, false, spec::Init::content());
  experts("o.weight", scope.d_model, width, spec::Init::into_stream(scope.n_layers));
  list.without("o.bias");
  list.add_if(bias, {"bias", {scope.d_model}, spec::Init::constant(0), spec::ParamKind::bias});
  position.config->params_under(list, "position", child_scope(scope, "position"));
}

std::vector<spec::StateDecl> AttentionExpertsConfig::state(const spec::Scope&) const {
  const spec::StateDecl entry{"", spec::StateDecl::Kind::per_token, {n_heads, head_dim}};
  std::vector<spec::StateDecl> decls(2, entry);
  decls[0].name = "k";
  decls[1].name = "v";
  return kept_for(pattern_config(), spec::packing(std::move(decls)));
}

double AttentionExpertsConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  return 4.0 * used(scope) * static_cast<double>(n_heads * head_dim) *
         static_cast<double>(pattern_config().keys_met(context));
}

}  // namespace tessera::nn
