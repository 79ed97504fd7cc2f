#include "tessera/nn/mixer/bidirectional.h"

#include <algorithm>

namespace tessera::nn {
namespace {

bool matches(const std::string& shared, std::string_view name) {
  return shared == "*" || name == shared ||
         (name.size() > shared.size() && name.starts_with(shared) && name[shared.size()] == '.');
}

/// Whether a mixer can be in an encoder as it is, by its own check.
bool reads_both_ways(const spec::AnyPart& mixer, spec::Scope scope) {
  scope.causal = false;
  try {
    spec::read_part(spec::Slot::mixer, spec::dump_part(mixer), scope);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void BidirectionalConfig::check(const spec::Scope& scope) const {
  const spec::Scope at = scope.at("inner");
  if (!inner)
    fail(ErrorKind::spec, at.path, "found null; expected a recurrent mixer, such as \"mamba\"");
  if (scope.causal)
    fail(ErrorKind::spec, scope.path,
         "bidirectional needs an encoder: its second reading begins at the end of the document; in "
         "a decoder use \"{}\" itself",
         inner.type());
  if (reads_both_ways(inner, at))
    fail(ErrorKind::spec, at.path,
         "\"{}\" is bidirectional already; use it without \"bidirectional\"", inner.type());
  const spec::Scope one = child_scope(at, "inner");
  const auto kept = inner.config->state(one);
  using Kind = spec::StateDecl::Kind;
  if (kept.empty() || std::any_of(kept.begin(), kept.end(), [](const spec::StateDecl& decl) {
        return decl.kind != Kind::fixed;
      }))
    fail(ErrorKind::spec, at.path,
         "\"{}\" is no recurrence with a state of fixed size; expected one, such as \"mamba\"",
         inner.type());
  spec::ParamList list;
  inner.config->params(list, one);
  std::vector<std::string> names;
  for (const spec::ParamDecl& decl : list.all()) names.push_back(decl.name);
  for (const std::string& shared : share)
    if (std::none_of(names.begin(), names.end(),
                     [&](const std::string& name) { return matches(shared, name); }))
      fail(ErrorKind::spec, scope.path + ".share",
           "\"{}\" is no parameter of \"{}\"; expected \"*\" or some of {}", shared, inner.type(),
           fmt::join(names, ", "));
}

void BidirectionalConfig::check_behind(const std::vector<spec::Placed>& before,
                                       const spec::Scope& scope) const {
  const auto* reads = dynamic_cast<const spec::ReadsEarlierParts*>(inner.config.get());
  if (reads == nullptr) return;
  // a direction reads what the same direction of earlier layers left
  std::vector<spec::Placed> earlier;
  for (const spec::Placed& placed : before)
    if (const auto* other = dynamic_cast<const BidirectionalConfig*>(placed.part.config.get()))
      earlier.push_back({other->inner, placed.scope.at("inner")});
  reads->check_behind(earlier, child_scope(scope.at("inner"), "inner"));
}

bool BidirectionalConfig::shares() const {
  const auto* reads = dynamic_cast<const spec::ReadsEarlierParts*>(inner.config.get());
  return reads != nullptr && reads->shares();
}

bool BidirectionalConfig::shared(std::string_view name) const {
  return std::any_of(share.begin(), share.end(),
                     [&](const std::string& shared) { return matches(shared, name); });
}

void BidirectionalConfig::params(spec::ParamList& list, const spec::Scope& scope) const {
  const spec::Scope one = child_scope(scope.at("inner"), "inner");
  const auto declared = [&](spec::ParamList of) {
    inner.config->params(of, one);
    return of;
  };
  const spec::ParamList names = declared(spec::ParamList());
  const spec::ParamList both = declared(list.under("both"));
  for (const bool forward : {true, false}) {
    const spec::ParamList own = declared(list.under(forward ? "forward" : "backward"));
    spec::ParamList used;
    for (size_t i = 0; i < own.all().size(); ++i) {
      if (!shared(names.all()[i].name)) used.add(own.all()[i]);
      if (shared(names.all()[i].name) && forward) used.add(both.all()[i]);
    }
    for (size_t i = 0; i < own.absent().size(); ++i)
      used.without(shared(names.absent()[i]) ? both.absent()[i] : own.absent()[i]);
    list.append(used);
  }
  if (combine == Directions::concat)
    list.linear("out", scope.d_model, 2 * scope.d_model, false,
                spec::Init::into_stream(scope.n_layers));
  if (combine == Directions::gate) list.linear("gate", scope.d_model, scope.d_model, true);
}

double BidirectionalConfig::extra_flops(const spec::Scope& scope, int64_t context) const {
  const spec::Scope one = child_scope(scope, "inner");
  double all = 2 * inner.config->extra_flops(one, context);
  // a shared product is computed in both directions
  spec::ParamList list;
  inner.config->params(list, one);
  for (const spec::ParamDecl& decl : list.all())
    if (shared(decl.name) && decl.kind == spec::ParamKind::matrix)
      all += 2 * static_cast<double>(decl.elements());
  return all;
}

}  // namespace tessera::nn
