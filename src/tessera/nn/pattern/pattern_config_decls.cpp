#include "tessera/nn/pattern/pattern_config.h"
#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

void check_pattern(const spec::AnyPart& pattern,
                   const spec::AnyPart& position,
                   int64_t n_heads,
                   const spec::Scope& scope) {
  if (!pattern)
    fail(ErrorKind::spec, scope.at("pattern").path, "found null; expected a pattern, or \"full\"");
  const auto& who = pattern.as<PatternConfig>();
  who.check_heads(scope.at("pattern"), n_heads);
  if (who.farthest() > 0 && position && position.info().place == spec::Place::score_bias)
    fail(ErrorKind::spec, scope.path,
         "pattern {} counts positions inside its cache, which {} adds to the scores without "
         "knowing; use rope or none",
         pattern.type(), position.type());
  if (scope.causal && position && who.prefix(1) == 0)
    if (const auto* scheme = dynamic_cast<const PositionConfig*>(position.config.get()))
      scheme->check_one_sided(scope.at("position"));
}

void check_one_projection(const spec::AnyPart& pattern,
                          std::string_view mixer,
                          const spec::Scope& scope) {
  if (pattern.as<PatternConfig>().global_projections())
    fail(ErrorKind::spec, scope.path,
         "pattern {} gives global tokens projections of their own, which {} has not; set its "
         "\"projections\" to \"shared\", or use attention",
         pattern.type(), mixer);
}

std::vector<spec::StateDecl> kept_for(const PatternConfig& who,
                                      std::vector<spec::StateDecl> decls) {
  for (spec::StateDecl& decl : decls) {
    decl.keep = who.horizon();
    decl.first = who.first_kept();
  }
  return decls;
}

}  // namespace tessera::nn
