#include "tessera/nn/select/select_config.h"

#include "tessera/nn/mixer/causal.h"
#include "tessera/nn/pattern/pattern_config.h"
#include "tessera/nn/position/rope.h"

namespace tessera::nn {

void check_select(const spec::AnyPart& select,
                  const spec::AnyPart& pattern,
                  const spec::AnyPart& position,
                  const spec::Scope& scope) {
  if (!select) return;
  require_causal(scope, "select \"" + select.type() + "\"", "attention without select");
  if (pattern.type() != "full")
    fail(
        ErrorKind::spec, scope.path,
        "select \"{}\" under pattern \"{}\"; expected pattern \"full\", whose keys it chooses from",
        select.type(), pattern.type());
  if (position && position.info().place == spec::Place::score_bias)
    fail(ErrorKind::spec, scope.path,
         "select \"{}\" with position \"{}\", which adds to the scores; expected a rotation or "
         "\"none\"",
         select.type(), position.type());
}

spec::Scope select_scope(spec::Scope scope, int64_t query_width, const spec::AnyPart& position) {
  scope.width = query_width;
  const auto* rope = position ? dynamic_cast<const RopeConfig*>(position.config.get()) : nullptr;
  scope.rotated = rope != nullptr ? rope->rotary_dim : 0;
  return scope;
}

std::vector<spec::StateDecl> with_select_state(std::vector<spec::StateDecl> decls,
                                               const spec::AnyPart& select,
                                               const spec::Scope& scope) {
  if (select)
    for (spec::StateDecl& decl : select.config->state(scope)) decls.push_back(std::move(decl));
  return decls;
}

}  // namespace tessera::nn
