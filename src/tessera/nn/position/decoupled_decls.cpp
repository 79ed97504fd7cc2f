#include "tessera/nn/position/decoupled.h"

namespace tessera::nn {

void DecoupledConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  using Kind = spec::ParamKind;
  if (const spec::AnyPart same = alias(scope)) return same.config->params(list, scope);
  declare(list, share, [&](spec::ParamList& to) {
    if (variant == DecoupledVariant::diet_rel)
      return to.add({"weight",
                     {scope.n_heads, 1 + max_distance * (scope.causal ? 1 : 2)},
                     spec::Init::table(),
                     Kind::embedding,
                     {spec::Role::head, spec::Role::position}});
    for (const char* name : {"q.weight", "k.weight"})
      to.add({name,
              {n_positions, scope.n_heads, rank},
              spec::Init::table(),
              Kind::embedding,
              {spec::Role::position, spec::Role::head, spec::Role::none}});
  });
}

void DecoupledConfig::check(const spec::Scope& scope) const {
  using V = DecoupledVariant;
  require_scores("decoupled", scope);
  check_share(share, scope);
  const DecoupledConfig plain;
  const auto refuse = [&](std::string_view field, int64_t value, std::string_view users) {
    fail(ErrorKind::spec, scope.path, "{} = {} with variant {}; {} alone have it: leave it out",
         field, value, spec::enum_name(variant), users);
  };
  if (!tabled() && n_positions != plain.n_positions)
    refuse("n_positions", n_positions, "untied and diet_abs");
  if (variant != V::diet_abs && variant != V::decoupled_rope && rank != 0)
    refuse("rank", rank, "diet_abs and decoupled_rope");
  if (variant != V::diet_rel && variant != V::disentangled && max_distance != plain.max_distance)
    refuse("max_distance", max_distance, "diet_rel and disentangled");
  if (variant == V::disentangled && max_distance == 0)
    fail(ErrorKind::spec, scope.path, "max_distance = 0 with variant disentangled; expected more");
  if (variant != V::decoupled_rope) return;
  if (!share.empty())
    fail(ErrorKind::spec, scope.path,
         "share \"{}\" with variant decoupled_rope, which has no parameters; leave it out", share);
  require_place(spec::Place::rotation, "decoupled_rope", scope,
                "use another variant, or a mixer that rotates queries and keys");
  if (rank % 2 != 0 || rank > scope.turned())
    fail(ErrorKind::spec, scope.path,
         "rank = {} with variant decoupled_rope; expected an even number of at most head_dim = {}",
         rank, scope.turned());
}

spec::AnyPart DecoupledConfig::alias(const spec::Scope& scope) const {
  const auto part = [&](const spec::Json& json) {
    return spec::read_part(spec::Slot::position, json, scope);
  };
  switch (variant) {
    case DecoupledVariant::untied:
      return part({{"type", "tupe"}, {"n_positions", n_positions}, {"share", share}});
    case DecoupledVariant::disentangled:
      return part({{"type", "deberta"}, {"max_relative", max_distance}, {"share", share}});
    case DecoupledVariant::decoupled_rope:
      return part({{"type", "rope"}, {"rotary_dim", rank}});
    case DecoupledVariant::diet_abs:
    case DecoupledVariant::diet_rel:
      break;
  }
  return {};
}

}  // namespace tessera::nn
