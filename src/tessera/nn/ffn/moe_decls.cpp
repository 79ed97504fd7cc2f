#include "tessera/nn/ffn/moe.h"

#include <algorithm>

namespace tessera::nn {
namespace {

/// What one expert declares, as the stack of all of them.
spec::ParamDecl stacked(spec::ParamDecl decl, int64_t experts, double share) {
  decl.shape.insert(decl.shape.begin(), experts);
  decl.roles.insert(decl.roles.begin(), spec::Role::expert);
  decl.share *= share;
  return decl;
}

/// Matrices and biases of products alone can be those of many experts at once.
bool stacks(const spec::ParamDecl& decl) {
  return (decl.kind == spec::ParamKind::matrix && decl.shape.size() == 2 &&
          decl.axis_of(spec::Role::in) == 1) ||
         (decl.kind == spec::ParamKind::bias && decl.shape.size() == 1);
}

}  // namespace

spec::Json MoeConfig::example(const spec::Scope& scope, int64_t) {
  return {{"n_experts", 8}, {"expert", {{"type", "glu"}, {"d_hidden", scope.d_model * 2}}}};
}

spec::Scope MoeConfig::child_scope(spec::Scope scope, std::string_view field) const {
  if (field == "router") scope.n_experts = choices();
  if (field.ends_with("_norm")) {
    scope.width = field.ends_with("out_norm") ? scope.d_model : scope.input_width();
    scope.of_batch = false;
  }
  if (field == "expert" && d_latent > 0) {
    scope.d_model = d_latent;
    scope.d_in = 0;
  }
  return scope;
}

std::vector<std::pair<const char*, const spec::AnyPart*>> MoeConfig::norms() const {
  return {{"router_norm", &router_norm},
          {"expert_norm", &expert_norm},
          {"expert_out_norm", &expert_out_norm},
          {"shared_norm", &shared_norm},
          {"shared_out_norm", &shared_out_norm}};
}

void MoeConfig::check(const spec::Scope& scope) const {
  if (!router)
    fail(ErrorKind::spec, scope.at("router").path,
         "found null; expected a router, such as \"top_k\"");
  if (!expert)
    fail(ErrorKind::spec, scope.at("expert").path, "found null; expected a feed-forward layer");
  if (shared_gate && !shared)
    fail(ErrorKind::spec, scope.path, "shared_gate without a shared layer; expected \"shared\"");
  if (!shared && (shared_norm || shared_out_norm))
    fail(ErrorKind::spec, scope.path,
         "shared_norm and shared_out_norm without a shared layer; expected \"shared\"");
  if (!router.as<RouterConfig>().chooses() && (router_norm || expert_norm))
    fail(ErrorKind::spec, scope.path,
         "router \"{}\" mixes what experts read: router_norm and expert_norm need one that chooses",
         router.type());
  if (identity > 0 && expert_norm)
    fail(ErrorKind::spec, scope.path,
         "identity = {} with expert_norm: it adds the token, which experts then do not read; leave "
         "one of them out",
         identity);
  if (identity > 0 && scope.input_width() != scope.d_model)
    fail(ErrorKind::spec, scope.path, "identity = {}: it reads {} channels and adds to {}",
         identity, scope.input_width(), scope.d_model);
  if (identity > 0 && d_latent > 0)
    fail(ErrorKind::spec, scope.path,
         "identity = {} with d_latent = {}: it would add {} channels to {}", identity, d_latent,
         scope.input_width(), d_latent);
  if (!router.as<RouterConfig>().chooses() && (zero > 0 || identity > 0 || scale_input))
    fail(
        ErrorKind::spec, scope.path,
        "router \"{}\" mixes tokens and chooses none: zero, identity and scale_input need one that "
        "chooses",
        router.type());
  spec::for_each_part(expert, [&](const spec::AnyPart& part) {
    if (dynamic_cast<const RouterConfig*>(part.config.get()) != nullptr)
      fail(ErrorKind::spec, scope.at("expert").path,
           "experts of experts: expected a layer without a router; two levels are router "
           "\"hierarchical\"");
  });
  if (!router.as<RouterConfig>().chooses()) {
    if (expert_dropout > 0)
      fail(ErrorKind::spec, scope.path,
           "expert_dropout = {}: router \"{}\" mixes tokens and chooses no experts for them",
           expert_dropout, router.type());
    FfnDropout::refuse(expert, fmt::format("an expert of router \"{}\"", router.type()),
                       scope.at("expert"));
  }
  spec::ParamList list;
  expert.config->params(list, child_scope(scope, "expert"));
  if (list.all().empty())
    fail(ErrorKind::spec, scope.at("expert").path,
         "\"{}\" cannot be an expert: it has no product; for experts that return their input give "
         "their number as \"identity\"",
         expert.type());
  for (const spec::ParamDecl& decl : list.all())
    if (!stacks(decl))
      fail(ErrorKind::spec, scope.at("expert").path,
           "\"{}\" cannot be an expert: its {} is no matrix or bias of a product", expert.type(),
           decl.name);
}

double MoeConfig::used_share(const spec::Scope& scope) const {
  const spec::Scope inner = child_scope(scope, "router");
  return std::min(1.0, router.as<RouterConfig>().used(inner) /
                           static_cast<double>(std::max<int64_t>(1, choices())));
}

void MoeConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  router.config->params_under(list, "router", child_scope(scope, "router"));
  spec::ParamList one = list.under("experts");
  expert.config->params(one, child_scope(scope, "expert"));
  spec::ParamList all;
  for (const spec::ParamDecl& decl : one.all())
    all.add(stacked(decl, n_experts, used_share(scope)));
  for (const std::string& name : one.absent()) all.without(name);
  list.append(all);
  if (d_latent > 0) {
    list.linear("latent_in", d_latent, scope.input_width(), /*bias=*/false);
    list.linear("latent_out", scope.d_model, d_latent, /*bias=*/false);
  }
  for (const auto& [name, norm] : norms())
    if (*norm) norm->config->params_under(list, name, child_scope(scope, name));
  list.add_if(bias, {"bias", {scope.d_model}, spec::Init::constant(0), spec::ParamKind::bias});
  if (shared) shared.config->params_under(list, "shared", scope);
  if (shared_gate) list.linear("shared_gate", 1, scope.input_width(), /*bias=*/false);
}

double MoeConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  const double used = used_share(scope) * static_cast<double>(n_experts);
  return used * expert.config->extra_flops(child_scope(scope, "expert"), context) +
         (shared ? shared.config->extra_flops(scope, context) : 0);
}

}  // namespace tessera::nn
