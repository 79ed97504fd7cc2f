#include "tessera/spec/fields.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "tessera/spec/names.h"
#include "tessera/spec/width_rule.h"

namespace tessera::spec::detail {
namespace {

[[noreturn]] void wrong(const Json& json, const Scope& scope, std::string_view expected) {
  fail(ErrorKind::spec, scope.path, "found {}{}; expected {}", kind_of(json),
       json.is_primitive() && !json.is_null() ? " " + json.dump() : "", expected);
}

template <class T>
void check_bounds(T found, const FieldRules& rules, const Scope& scope) {
  const auto value = static_cast<double>(found);
  const auto require = [&](bool held, const char* bound, double of) {
    if (!held) fail(ErrorKind::spec, scope.path, "found {}; expected {} {}", found, bound, of);
  };
  require(value >= rules.min, "at least", rules.min);
  require(value > rules.above, "more than", rules.above);
  require(value <= rules.max, "at most", rules.max);
  require(value < rules.below, "less than", rules.below);
}

/// ", in [0, 1)", ", >= 1"; "" without bounds.
std::string range_of(const FieldRules& rules) {
  const bool open_below = std::isfinite(rules.above), open_above = std::isfinite(rules.below);
  const bool low = open_below || std::isfinite(rules.min);
  const bool high = open_above || std::isfinite(rules.max);
  const double least = open_below ? rules.above : rules.min;
  const double most = open_above ? rules.below : rules.max;
  if (low && high)
    return fmt::format(", in {}{}, {}{}", open_below ? '(' : '[', least, most,
                       open_above ? ')' : ']');
  if (low) return fmt::format(", {} {}", open_below ? ">" : ">=", least);
  if (high) return fmt::format(", {} {}", open_above ? "<" : "<=", most);
  return "";
}

/// Whether a member reads null.
bool takes_null(const FieldEntry& f) {
  return f.type->part != nullptr || f.type->name().ends_with(" or null");
}

/// Of null at a key that has a default: programs write it for numbers that are not finite, and
/// people for "as it is without".
[[noreturn]] void refuse_null(const FieldEntry& f, const void* fallback, const Scope& scope) {
  const Json json = f.type->dump(fallback);
  const std::string expected = json.is_boolean()            ? "true or false"
                               : json.is_number_integer()   ? "an integer"
                               : json.is_number()           ? "a number"
                               : json.is_array()            ? "a list"
                               : json.is_object()           ? "an object"
                               : f.type->name() == "string" ? "a string"
                                                            : "one of " + f.type->name();
  fail(ErrorKind::spec, scope.path, "found null; expected {}, or no such key for the default{}",
       expected, json.is_structured() ? "" : " " + json.dump());
}

void refuse_unknown_keys(const Json& json,
                         const ObjectType& type,
                         const Scope& scope,
                         bool has_type) {
  std::vector<std::string> known;
  for (const FieldEntry& f : type.fields) known.emplace_back(f.name);
  check_keys(json, known, scope.path, has_type ? "type" : "");
}

}  // namespace

void read_object(
    const Json& json, void* out, const ObjectType& type, const Scope& scope, bool has_type) {
  if (!json.is_object()) {
    std::vector<std::string_view> names;
    for (const FieldEntry& f : type.fields) names.push_back(f.name);
    fail(ErrorKind::spec, scope.path, "found {}; expected an object{}", kind_of(json),
         names.empty() ? "" : fmt::format(" of {}", fmt::join(names, ", ")));
  }
  refuse_unknown_keys(json, type, scope, has_type);
  for (const FieldEntry& f : type.fields) {
    Scope here = scope.at(f.name);
    if (type.child_scope != nullptr) here = type.child_scope(out, here, f.name);
    void* value = f.value(out);
    if (const auto found = json.find(f.name); found != json.end()) {
      if (found->is_null() && !f.rules.required && !takes_null(f)) refuse_null(f, value, here);
      f.type->read(*found, value, f.rules, here);
    } else if (f.rules.required) {
      fail(ErrorKind::spec, scope.path, "\"{}\" is missing; expected {} ({})", f.name,
           f.type->name(), f.doc);
    } else if (f.type->part != nullptr && *f.rules.part != '\0') {
      AnyPart& part = f.type->part(value);
      if (!part) part = default_part(f.type->slot, f.rules.part, here);
    }
  }
}

Json dump_object(const void* object, const ObjectType& type) {
  Json json = Json::object();
  for (const FieldEntry& f : type.fields) json[f.name] = f.type->dump(f.value(object));
  return json;
}

Json object_schema(const ObjectType& type) {
  Json properties = Json::object();
  Json required = Json::array();
  for (const FieldEntry& f : type.fields) {
    Json property = f.type->schema();
    if (f.rules.width) property["type"] = {"integer", "string"};
    property["description"] = f.doc;
    Json& bounded = property.contains("items") ? property["items"] : property;
    for (const auto& [bound, of] : {std::pair("minimum", f.rules.min),
                                    {"exclusiveMinimum", f.rules.above},
                                    {"maximum", f.rules.max},
                                    {"exclusiveMaximum", f.rules.below}})
      if (std::isfinite(of)) bounded[bound] = of;
    properties[f.name] = property;
    if (f.rules.required) required.push_back(f.name);
  }
  return {{"type", "object"},
          {"properties", properties},
          {"required", required},
          {"additionalProperties", false}};
}

std::vector<FieldDoc> object_docs(const void* defaults, const ObjectType& type) {
  std::vector<FieldDoc> docs;
  for (const FieldEntry& f : type.fields) {
    std::string fallback =
        *f.rules.part != '\0' ? f.rules.part : f.type->dump(f.value(defaults)).dump();
    if (f.rules.required) fallback.clear();
    docs.push_back({f.name, f.type->name() + (f.rules.width ? " or rule" : "") + range_of(f.rules),
                    fallback, f.doc, f.rules.required});
  }
  return docs;
}

Json common_example(const ObjectType& type, const Scope& scope) {
  Json json = Json::object();
  for (const FieldEntry& f : type.fields)
    if (f.rules.required && f.name == std::string_view("n_heads"))
      json[f.name] = std::max<int64_t>(1, scope.d_model / 64);
  return json;
}

void collect_parts(const void* object, const ObjectType& type, std::vector<const AnyPart*>& out) {
  for (const FieldEntry& f : type.fields)
    if (f.type->collect != nullptr) f.type->collect(f.value(object), out);
}

bool read_boolean(const Json& json, const Scope& scope) {
  if (!json.is_boolean()) wrong(json, scope, "true or false");
  return json.get<bool>();
}

int64_t read_integer(const Json& json, const FieldRules& rules, const Scope& scope) {
  if (rules.width && json.is_string())
    return width_by_rule(json.get<std::string>(), scope.d_model, scope);
  if (!json.is_number_integer()) wrong(json, scope, "an integer");
  if (json.is_number_unsigned() &&
      json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    wrong(json, scope, "an integer that fits 64 bits");
  const auto value = json.get<int64_t>();
  check_bounds(value, rules, scope);
  return value;
}

double read_number(const Json& json, const FieldRules& rules, const Scope& scope) {
  if (!json.is_number()) wrong(json, scope, "a number");
  const auto value = json.get<double>();
  // what computes with it is in float32, where it would be infinite
  if (constexpr double kMost = std::numeric_limits<float>::max(); std::abs(value) > kMost)
    fail(ErrorKind::spec, scope.path, "found {}; expected a magnitude of at most {:.4g} (float32)",
         value, kMost);
  check_bounds(value, rules, scope);
  return value;
}

std::string read_string(const Json& json, const Scope& scope) {
  if (!json.is_string()) wrong(json, scope, "a string");
  return json.get<std::string>();
}

size_t read_name(const Json& json, const std::vector<std::string>& names, const Scope& scope) {
  if (!json.is_string()) wrong(json, scope, fmt::format("one of {}", fmt::join(names, ", ")));
  const auto name = json.get<std::string>();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    fail(ErrorKind::spec, scope.path, "unknown value \"{}\"{}; expected one of {}", name,
         did_you_mean(name, names), fmt::join(names, ", "));
  return static_cast<size_t>(found - names.begin());
}

void require_list(const Json& json, const Scope& scope) {
  if (!json.is_array()) wrong(json, scope, "a list");
}

Scope item_scope(const Scope& scope, size_t index) {
  Scope item = scope;
  item.path += fmt::format("[{}]", index);
  return item;
}

std::string joined(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, " | "));
}

Json list_schema(Json items) {
  return {{"type", "array"}, {"items", std::move(items)}};
}

Json nullable_schema(Json value) {
  return {{"anyOf", {std::move(value), {{"type", "null"}}}}};
}

Json part_schema(Slot slot) {
  return {{"$ref", std::string("#/$defs/") + name_of(slot)}};
}

}  // namespace tessera::spec::detail
