#include "tessera/spec/mechanism.h"

#include <iterator>
#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "tessera/spec/names.h"

namespace tessera::spec {
namespace {

std::vector<Mechanism>& table() {
  static std::vector<Mechanism> all;
  return all;
}

int64_t product(const std::string& name, const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(n, size, &n))
      fail(ErrorKind::spec, "params", "{}: shape [{}] is not a valid size", name,
           fmt::join(shape, ", "));
  return n;
}

bool is_number(const Mechanism& mechanism, const std::string& key) {
  const std::vector<FieldDoc> fields = mechanism.fields();
  return std::any_of(fields.begin(), fields.end(), [&](const FieldDoc& field) {
    return field.name == key && field.type.starts_with("number");
  });
}

/// Integers of a config stay below 2^30, so that the product of two fits 64 bits and shapes can be
/// formed before they are checked.
void check_sizes(const Json& json, const Mechanism& mechanism, const Scope& scope) {
  constexpr int64_t kLargest = int64_t{1} << 30;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_number_integer()) continue;
    const bool fits = value.is_number_unsigned()
                          ? value.get<uint64_t>() <= static_cast<uint64_t>(kLargest)
                          : value.get<int64_t>() >= -kLargest && value.get<int64_t>() <= kLargest;
    // a number may be written without a point
    if (!fits && !is_number(mechanism, key))
      fail(ErrorKind::spec, scope.at(key).path, "found {}; expected at most {}", value.dump(),
           kLargest);
  }
}

}  // namespace

const char* name_of(Slot slot) {
  constexpr const char* kNames[] = {
#define TESSERA_SLOT(name, Interface) #name,
#define TESSERA_PLAIN_SLOT(name) #name,
#include "tessera/spec/slots.def"
  };
  return kNames[static_cast<int>(slot)];
}

const char* name_of(Causality causality) {
  constexpr const char* kNames[] = {"bitwise", "rounding", "selection", "none"};
  static_assert(std::size(kNames) == static_cast<size_t>(Causality::none) + 1);
  return kNames[static_cast<int>(causality)];
}

const char* name_of(Growth growth) {
  constexpr const char* kNames[] = {"1", "T", "T log T", "T^1.5", "T^2"};
  static_assert(std::size(kNames) == static_cast<size_t>(Growth::quadratic) + 1);
  return kNames[static_cast<int>(growth)];
}

double grown(Growth growth, double length) {
  switch (growth) {
    case Growth::constant:
      return 1;
    case Growth::linear:
      return length;
    case Growth::linear_log:
      return length * std::max(1.0, std::log2(length));
    case Growth::three_halves:
      return length * std::sqrt(length);
    case Growth::quadratic:
      return length * length;
  }
  fail(ErrorKind::internal, "growth", "no such kind: {}", static_cast<int>(growth));
}

const char* name_of(Place place) {
  constexpr const char* kNames[] = {"nowhere", "the embedding", "a rotation of queries and keys",
                                    "a bias of the scores"};
  static_assert(std::size(kNames) == static_cast<size_t>(Place::score_bias) + 1);
  return kNames[static_cast<int>(place)];
}

bool Places::offers(Place place) const {
  switch (place) {
    case Place::nowhere:
      return true;
    case Place::embedding:
      return embedding;
    case Place::rotation:
      return rotation;
    case Place::score_bias:
      return score_bias;
  }
  return false;
}

std::string Places::text() const {
  std::string all;
  for (const Place place : {Place::embedding, Place::rotation, Place::score_bias})
    if (offers(place)) all += (all.empty() ? "" : " and ") + std::string(name_of(place));
  return all.empty() ? "no place" : all;
}

const char* name_of(ParamKind kind) {
  constexpr const char* kNames[] = {"matrix", "embedding", "norm", "bias", "structural"};
  static_assert(std::size(kNames) == static_cast<size_t>(ParamKind::structural) + 1);
  return kNames[static_cast<int>(kind)];
}

int64_t ParamDecl::elements() const {
  return product(name, shape);
}

namespace {

std::vector<Role> usual_roles(const ParamDecl& decl) {
  const size_t n = decl.shape.size();
  if (decl.kind == ParamKind::matrix && n == 2) return {Role::out, Role::in};
  if (decl.kind == ParamKind::bias && n == 1) return {Role::out};
  require(decl.kind != ParamKind::embedding && decl.kind != ParamKind::matrix, "parameters",
          "{}: a parameter of {} dimensions says the role of each", decl.name, n);
  return std::vector<Role>(n, Role::none);
}

}  // namespace

const char* name_of(Role role) {
  switch (role) {
    case Role::none:
      return "none";
    case Role::out:
      return "out";
    case Role::in:
      return "in";
    case Role::expert:
      return "expert";
    case Role::head:
      return "head";
    case Role::vocabulary:
      return "vocabulary";
    case Role::position:
      return "position";
  }
  return "";
}

int ParamDecl::axis_of(Role role) const {
  const auto found = std::find(roles.begin(), roles.end(), role);
  return found == roles.end() ? -1 : static_cast<int>(found - roles.begin());
}

int ParamDecl::shard_axis() const {
  for (const Role role : {Role::expert, Role::head, Role::vocabulary, Role::out})
    if (const int axis = axis_of(role); axis >= 0) return axis;
  return -1;
}

bool ParamDecl::adapts() const {
  return kind == ParamKind::matrix && roles.size() >= 2 && roles[roles.size() - 2] == Role::out &&
         roles.back() == Role::in && (roles.size() == 2 || axis_of(Role::expert) == 0);
}

bool ParamDecl::quantises() const {
  return (kind == ParamKind::matrix || kind == ParamKind::embedding) && roles.size() >= 2 &&
         roles.back() == Role::in;
}

std::string ParamList::full(const std::string& name) const {
  return prefix_.empty() ? name : prefix_ + "." + name;
}

void ParamList::add(ParamDecl decl) {
  if (decl.roles.empty()) decl.roles = usual_roles(decl);
  require(decl.roles.size() == decl.shape.size(), "parameters", "{}: {} roles of {} dimensions",
          decl.name, decl.roles.size(), decl.shape.size());
  decl.name = full(decl.name);
  if (decl.rule) decl.rule.statistic = full(decl.rule.statistic);
  decls_.push_back(std::move(decl));
}

void ParamList::add_if(bool present, ParamDecl decl) {
  if (present)
    add(std::move(decl));
  else
    without(decl.name);
}

void ParamList::without(std::string_view name) {
  absent_.push_back(full(std::string(name)));
}

void ParamList::linear(std::string_view name, int64_t out, int64_t in, bool bias, Init init) {
  add({std::string(name) + ".weight", {out, in}, init, ParamKind::matrix});
  add_if(bias, {std::string(name) + ".bias", {out}, Init::constant(0), ParamKind::bias});
}

ParamList ParamList::under(std::string_view name) const {
  return ParamList(prefix_.empty() ? std::string(name) : prefix_ + "." + std::string(name));
}

void ParamList::append(const ParamList& other) {
  decls_.insert(decls_.end(), other.decls_.begin(), other.decls_.end());
  absent_.insert(absent_.end(), other.absent_.begin(), other.absent_.end());
}

void Config::params_under(ParamList& list, std::string_view name, const Scope& scope) const {
  ParamList child = list.under(name);
  params(child, scope);
  list.append(child);
}

int64_t StateDecl::bytes_per_entry() const {
  return storage_bytes(dtype, product(name, shape));
}

int64_t state_bytes(const std::vector<StateDecl>& decls, int64_t length, int64_t source) {
  int64_t bytes = 0;
  for (const StateDecl& decl : decls) {
    const int64_t entries = decl.kind == StateDecl::Kind::fixed        ? 1
                            : decl.kind == StateDecl::Kind::per_source ? source
                                                                       : decl.kept(length);
    bytes += entries * decl.bytes_per_entry();
  }
  return bytes;
}

const std::vector<Mechanism>& mechanisms() {
  return table();
}

void add_mechanism(Mechanism mechanism) {
  require(find_mechanism(mechanism.slot, mechanism.name) == nullptr, "registry",
          "{} is registered twice", mechanism.name);
  table().push_back(std::move(mechanism));
}

const Mechanism* find_mechanism(Slot slot, std::string_view name) {
  for (const Mechanism& mechanism : table())
    if (mechanism.slot == slot && mechanism.name == name) return &mechanism;
  return nullptr;
}

void for_each_part(const AnyPart& part, const std::function<void(const AnyPart&)>& visit) {
  if (!part) return;
  visit(part);
  for (const AnyPart* child : part.mechanism->parts(*part.config)) for_each_part(*child, visit);
}

namespace {

bool has_field(const Mechanism& mechanism, std::string_view name) {
  for (const FieldDoc& field : mechanism.fields())
    if (field.name == name) return true;
  return false;
}

/// "an ffn": letters that begin with a vowel where they are read aloud.
std::string with_article(std::string_view name) {
  const bool vowel = std::string_view("aeiou").find(name.front()) != std::string_view::npos;
  return fmt::format("{} {}", vowel || name == "ffn" ? "an" : "a", name);
}

/// A mixer without a place for a position or a pattern: why, and what has one.
void refuse_missing_places(const Mechanism& mixer, const Json& json, const Scope& scope) {
  for (const char* key : {"position", "pattern"}) {
    if (!json.contains(key) || has_field(mixer, key)) continue;
    std::vector<std::string> others;
    for (const Mechanism& m : table())
      if (m.slot == Slot::mixer && has_field(m, key)) others.push_back(m.name);
    const bool position = key == std::string_view("position");
    fail(ErrorKind::spec, scope.path, "unknown key \"{}\": {} {}; expected {}a mixer with a {}: {}",
         key, mixer.name,
         position ? "has no rotation and no bias that a position could be"
                  : "has no pattern, since who sees whom is part of what it is",
         position ? "a position of \"embed\" such as \"learned\", or " : "", key,
         fmt::join(others, ", "));
  }
}

/// A mixer that has a position has one always: "none" adds nothing.
void refuse_no_position(const Json& json, const Scope& scope) {
  if (const auto position = json.find("position"); position != json.end() && position->is_null())
    fail(ErrorKind::spec, scope.at("position").path, "found null; expected a scheme, or \"none\"");
}

/// The error for a name of another slot: which, and where it belongs.
void refuse_other_slot(Slot slot, const std::string& name, const Scope& scope) {
  for (const Mechanism& other : table()) {
    if (other.name != name) continue;
    const bool branch = (slot == Slot::ffn && other.slot == Slot::mixer) ||
                        (slot == Slot::mixer && other.slot == Slot::ffn);
    // a layer of two mixers, or of two feed-forward parts, is a list of branches
    const std::string where =
        branch ? fmt::format(
                     "a layer of other parts than a mixer and an ffn is a list of branches: "
                     "\"layers\": [{{\"branches\": [{{\"name\": \"first\", \"mixer\": "
                     "{{...}}}}, {{\"name\": \"second\", \"{}\": {{\"type\": "
                     "\"{}\"}}}}]}}]",
                     name_of(other.slot), name)
               : fmt::format("expected it as \"{}\": {{\"type\": \"{}\"}}, and {} here",
                             name_of(other.slot), name, with_article(name_of(slot)));
    fail(ErrorKind::spec, scope.path, "unknown {} \"{}\": it is {}; {}", name_of(slot), name,
         with_article(name_of(other.slot)), where);
  }
}

}  // namespace

AnyPart read_part(Slot slot, const Json& json, const Scope& scope) {
  std::string name;
  if (json.is_string()) {
    name = json.get<std::string>();
  } else if (json.is_object()) {
    const auto type = json.find("type");
    if (type == json.end() || !type->is_string())
      fail(ErrorKind::spec, scope.path, "a {} needs \"type\": {}; expected its name as a string",
           name_of(slot), type == json.end() ? "none given" : std::string(kind_of(*type)));
    name = type->get<std::string>();
  } else {
    fail(ErrorKind::spec, scope.path, "found {}; expected a {}: {{\"type\": ...}}", kind_of(json),
         name_of(slot));
  }
  const Mechanism* mechanism = find_mechanism(slot, name);
  if (mechanism == nullptr) {
    refuse_other_slot(slot, name, scope);
    std::vector<std::string> known;
    for (const Mechanism& m : table())
      if (m.slot == slot) known.push_back(m.name);
    fail(ErrorKind::spec, scope.path,
         "unknown {} \"{}\"{}; known: {}; of a plugin: --plugin FILE.so or TESSERA_PLUGINS",
         name_of(slot), name, did_you_mean(name, known), fmt::join(known, ", "));
  }
  AnyPart part;
  part.mechanism = mechanism;
  if (json.is_object()) check_sizes(json, *mechanism, scope);
  if (json.is_object() && slot == Slot::mixer) {
    refuse_missing_places(*mechanism, json, scope);
    refuse_no_position(json, scope);
  }
  part.config = mechanism->read(json.is_string() ? Json::object() : json, scope);
  return part;
}

Json dump_part(const AnyPart& part) {
  if (!part) return nullptr;
  Json json = Json::object();
  json["type"] = part.type();
  const Json fields = part.mechanism->dump(*part.config);
  for (const auto& [key, value] : fields.items()) json[key] = value;
  return json;
}

Json example_part(const Mechanism& mechanism, const Scope& scope, int64_t length) {
  Json json = {{"type", mechanism.name}};
  json.update(mechanism.example(scope, length));
  return json;
}

AnyPart default_part(Slot slot, std::string_view name, const Scope& scope) {
  return read_part(slot, Json(std::string(name)), scope);
}

}  // namespace tessera::spec
