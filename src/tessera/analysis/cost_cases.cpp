#include "tessera/analysis/cost_cases.h"

#include "tessera/nn/position/position_config.h"
#include "tessera/nn/registry.h"

namespace tessera::analysis {
namespace {

using spec::Slot;

bool measured(const spec::Mechanism& mechanism) {
  return mechanism.slot == Slot::mixer || mechanism.slot == Slot::pattern ||
         mechanism.slot == Slot::position;
}

std::string title_of(const spec::Mechanism& mechanism) {
  return std::string(name_of(mechanism.slot)) + "/" + mechanism.name;
}

spec::Scope scope_of(int64_t width, bool causal) {
  spec::Scope scope;
  scope.d_model = scope.width = width;
  scope.source = width;  // for cross-attention: a source as long as the document
  scope.causal = causal;
  scope.path = "bench";
  return scope;
}

/// The scope that attention gives to a pattern or a position of its own.
spec::Scope inside_attention(spec::Scope scope, const spec::Mechanism& mechanism) {
  const Json attention = spec::example_part(*spec::find_mechanism(Slot::mixer, "attention"), scope,
                                            /*length=*/1);
  scope.n_heads = attention["n_heads"].get<int64_t>();
  if (mechanism.info.place != spec::Place::embedding) scope.width = scope.d_model / scope.n_heads;
  return scope;
}

CostLayer read_layer(const spec::Mechanism& mechanism, spec::Scope scope, int64_t length) {
  CostLayer layer;
  layer.scope = scope;
  Json mixer;
  if (mechanism.slot == Slot::mixer) {
    mixer = spec::example_part(mechanism, scope, length);
  } else {
    mixer = spec::example_part(*spec::find_mechanism(Slot::mixer, "attention"), scope, length);
    const Json part = spec::example_part(mechanism, inside_attention(scope, mechanism), length);
    if (mechanism.slot == Slot::pattern)
      mixer["pattern"] = part;
    else if (mechanism.info.place != spec::Place::embedding)
      mixer["position"] = part;
    else
      layer.position = spec::read_part(Slot::position, part, layer.position_scope());
  }
  layer.mixer = spec::read_part(Slot::mixer, mixer, scope.at("mixer"));
  return layer;
}

}  // namespace

spec::Scope CostLayer::position_scope() const {
  spec::Scope inner = scope.at("position");
  inner.places = {.embedding = true};
  return inner;
}

Claim CostLayer::claim() const {
  Claim claim{Growth::constant, Growth::constant};
  const auto take = [&](const spec::AnyPart& part) {
    claim.time = std::max(claim.time, part.info().time);
    claim.memory = std::max(claim.memory, part.info().memory);
  };
  spec::for_each_part(mixer, take);
  if (position) spec::for_each_part(position, take);
  return claim;
}

bool CostLayer::has_state() const {
  bool all = scope.causal;
  const auto take = [&](const spec::AnyPart& part) {
    const Slot slot = part.mechanism->slot;
    const bool offers = part.info().forms.recurrent ||
                        (slot != Slot::mixer && slot != Slot::position && slot != Slot::pattern);
    all = all && offers && part.config->no_state_reason().empty();
    if (slot == Slot::position) all = all && !part.as<nn::PositionConfig>().angles_change();
  };
  spec::for_each_part(mixer, take);
  if (position) spec::for_each_part(position, take);
  return all;
}

Json CostLayer::config() const {
  Json json = {{"mixer", spec::dump_part(mixer)}};
  if (position) json["position"] = spec::dump_part(position);
  return json;
}

std::vector<const spec::Mechanism*> cost_mechanisms(const std::vector<std::string>& only) {
  nn::register_mechanisms();
  std::vector<std::string> names;
  std::vector<const spec::Mechanism*> out;
  for (const spec::Mechanism& m : spec::mechanisms()) {
    if (!measured(m)) continue;
    names.push_back(m.name);
    const auto wanted = [&](const std::string& name) {
      return name == m.name || name == title_of(m);
    };
    if (only.empty() || std::any_of(only.begin(), only.end(), wanted)) out.push_back(&m);
  }
  for (const std::string& name : only) {
    const auto is = [&](const spec::Mechanism* m) {
      return name == m->name || name == title_of(*m);
    };
    if (std::any_of(out.begin(), out.end(), is)) continue;
    const std::string bare = name.substr(name.find('/') + 1),
                      near = spec::nearest_name(bare, names);
    fail(ErrorKind::usage, "bench", "no mixer, pattern or position is called \"{}\"{}", name,
         near.empty() ? "; `tessera list` shows them" : "; did you mean \"" + near + "\"?");
  }
  return out;
}

CostLayer cost_layer(const spec::Mechanism& mechanism, int64_t width, int64_t length) {
  std::string refusal;
  for (const bool causal : {true, false}) try {
      return read_layer(mechanism, scope_of(width, causal), length);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::spec) throw;
      refusal += (causal ? "in a decoder: " : "; in an encoder: ") + std::string(error.what());
    }
  fail(ErrorKind::spec, "bench",
       "the example of {} does not fit a layer of width {} with {} tokens: {}; another --width, or "
       "mend example() of its config",
       title_of(mechanism), width, length, refusal);
}

}  // namespace tessera::analysis
