// One field list per config, many consumers: reading, dumping, schema, documentation and near-name
// errors all come from the same std::tuple of field(...).
//
//   struct RmsNormConfig : Config {
//     double eps = 1e-6;
//     static constexpr auto fields() {
//       return std::tuple{field("eps", &RmsNormConfig::eps, "added to the mean square", {.min =
//       0})};
//     }
//   };
//
// A config whose children need more than its own scope (the width of a head, say) has
// `Scope child_scope(Scope scope, std::string_view field) const`; fields are read in order, so it
// may use those above.
//
// Supported members: bool, int64_t, double, std::string, enums with EnumNames, std::optional<T>,
// std::vector<T>, Part<slot>, and structs that have fields() themselves.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "tessera/spec/mechanism.h"

namespace tessera::spec {

/// Specialise for every enum used in a config: static constexpr std::array names{std::pair{E::a,
/// "a"}, ...}.
template <class E>
struct EnumNames;

template <class E>
const char* enum_name(E value) {
  for (const auto& [e, name] : EnumNames<E>::names)
    if (e == value) return name;
  return "?";
}

struct FieldRules {
  double min = -std::numeric_limits<double>::infinity();
  bool required = false;
  const char* part = "";  // for Part fields: the mechanism used when the key is absent ("" = none)
};

template <class C, class T>
struct Field {
  const char* name;
  T C::*member;
  const char* doc;
  FieldRules rules;
};

template <class C, class T>
constexpr Field<C, T> field(const char* name,
                            T C::*member,
                            const char* doc,
                            FieldRules rules = {}) {
  return {name, member, doc, rules};
}

namespace detail {

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct PartSlot : std::false_type {};
template <Slot S>
struct PartSlot<Part<S>> : std::true_type {
  static constexpr Slot slot = S;
};
template <class T>
concept HasFields = requires {
  T::fields();
};

template <class T>
std::string type_name() {
  if constexpr (std::is_same_v<T, bool>)
    return "boolean";
  else if constexpr (std::is_integral_v<T>)
    return "integer";
  else if constexpr (std::is_floating_point_v<T>)
    return "number";
  else if constexpr (std::is_same_v<T, std::string>)
    return "string";
  else if constexpr (IsOptional<T>::value)
    return type_name<typename T::value_type>() + " or null";
  else if constexpr (IsVector<T>::value)
    return "list of " + type_name<typename T::value_type>();
  else if constexpr (PartSlot<T>::value)
    return name_of(PartSlot<T>::slot);
  else if constexpr (std::is_enum_v<T>) {
    std::string names;
    for (const auto& [value, name] : EnumNames<T>::names)
      names += (names.empty() ? "" : " | ") + std::string(name);
    return names;
  } else
    return "object";
}

template <class T>
void read_value(const Json& json, T& out, const FieldRules& rules, const Scope& scope);

template <class C>
void read_fields(const Json& json, C& out, const Scope& scope, bool has_type) {
  if (!json.is_object())
    fail(ErrorKind::spec, scope.path, "found {}; expected an object", kind_of(json));
  // an unknown key is an error that names the nearest valid one
  std::vector<std::string> known;
  std::apply([&](const auto&... f) { (known.push_back(f.name), ...); }, C::fields());
  for (const auto& [key, value] : json.items()) {
    if (has_type && key == "type") continue;
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = nearest_name(key, known);
    fail(ErrorKind::spec, scope.path, "unknown key \"{}\"{}; valid keys: {}", key,
         near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near), fmt::join(known, ", "));
  }
  const auto read_one = [&](const auto& f) {
    using T = std::remove_cvref_t<decltype(out.*(f.member))>;
    Scope here = scope.at(f.name);
    if constexpr (requires { out.child_scope(here, f.name); }) here = out.child_scope(here, f.name);
    const auto found = json.find(f.name);
    if (found != json.end()) {
      read_value(*found, out.*(f.member), f.rules, here);
    } else if (f.rules.required) {
      fail(ErrorKind::spec, scope.path, "\"{}\" is missing; expected {} ({})", f.name,
           type_name<T>(), f.doc);
    } else if constexpr (PartSlot<T>::value) {
      if (*f.rules.part != '\0' && !(out.*(f.member)))
        static_cast<AnyPart&>(out.*(f.member)) =
            default_part(PartSlot<T>::slot, f.rules.part, here);
    }
  };
  std::apply([&](const auto&... f) { (read_one(f), ...); }, C::fields());
}

template <class T>
void read_value(const Json& json, T& out, const FieldRules& rules, const Scope& scope) {
  const auto wrong = [&](std::string_view expected) {
    fail(ErrorKind::spec, scope.path, "found {}{}; expected {}", kind_of(json),
         json.is_primitive() ? " " + json.dump() : "", expected);
  };
  const auto check_min = [&](double value) {
    if (value < rules.min)
      fail(ErrorKind::spec, scope.path, "found {}; expected at least {}", value, rules.min);
  };
  if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) wrong("true or false");
    out = json.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    if (!json.is_number_integer()) wrong("an integer");
    if (json.is_number_unsigned() &&
        json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<T>::max()))
      wrong("an integer that fits 64 bits");
    out = json.get<T>();
    check_min(static_cast<double>(out));
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!json.is_number()) wrong("a number");
    out = json.get<T>();
    check_min(out);
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!json.is_string()) wrong("a string");
    out = json.get<std::string>();
  } else if constexpr (IsOptional<T>::value) {
    if (json.is_null()) {
      out.reset();
    } else {
      typename T::value_type value{};
      read_value(json, value, rules, scope);
      out = std::move(value);
    }
  } else if constexpr (IsVector<T>::value) {
    if (!json.is_array()) wrong("a list");
    out.clear();
    for (size_t i = 0; i < json.size(); ++i) {
      Scope item = scope;
      item.path += fmt::format("[{}]", i);
      typename T::value_type value{};
      read_value(json[i], value, rules, item);
      out.push_back(std::move(value));
    }
  } else if constexpr (PartSlot<T>::value) {
    if (json.is_null()) {
      out = T{};
    } else {
      static_cast<AnyPart&>(out) = read_part(PartSlot<T>::slot, json, scope);
    }
  } else if constexpr (std::is_enum_v<T>) {
    std::vector<std::string> known;
    for (const auto& [value, name] : EnumNames<T>::names) known.emplace_back(name);
    if (!json.is_string()) wrong(fmt::format("one of {}", fmt::join(known, ", ")));
    const auto name = json.get<std::string>();
    for (const auto& [value, enum_name] : EnumNames<T>::names)
      if (name == enum_name) {
        out = value;
        return;
      }
    const std::string near = nearest_name(name, known);
    fail(ErrorKind::spec, scope.path, "unknown value \"{}\"{}; expected one of {}", name,
         near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near), fmt::join(known, ", "));
  } else {
    static_assert(HasFields<T>, "a config member needs fields() or a supported type");
    read_fields(json, out, scope, false);
  }
}

template <class T>
Json dump_value(const T& value) {
  if constexpr (IsOptional<T>::value) {
    return value ? dump_value(*value) : Json(nullptr);
  } else if constexpr (IsVector<T>::value) {
    Json list = Json::array();
    for (const auto& item : value) list.push_back(dump_value(item));
    return list;
  } else if constexpr (PartSlot<T>::value) {
    return dump_part(value);
  } else if constexpr (std::is_enum_v<T>) {
    return enum_name(value);
  } else if constexpr (HasFields<T>) {
    Json json = Json::object();
    std::apply([&](const auto&... f) { ((json[f.name] = dump_value(value.*(f.member))), ...); },
               T::fields());
    return json;
  } else {
    return Json(value);
  }
}

template <class T>
Json schema_of() {
  if constexpr (std::is_same_v<T, bool>)
    return {{"type", "boolean"}};
  else if constexpr (std::is_integral_v<T>)
    return {{"type", "integer"}};
  else if constexpr (std::is_floating_point_v<T>)
    return {{"type", "number"}};
  else if constexpr (std::is_same_v<T, std::string>)
    return {{"type", "string"}};
  else if constexpr (IsOptional<T>::value)
    return {{"anyOf", {schema_of<typename T::value_type>(), {{"type", "null"}}}}};
  else if constexpr (IsVector<T>::value)
    return {{"type", "array"}, {"items", schema_of<typename T::value_type>()}};
  else if constexpr (PartSlot<T>::value)
    return {{"$ref", std::string("#/$defs/") + name_of(PartSlot<T>::slot)}};
  else if constexpr (std::is_enum_v<T>) {
    Json names = Json::array();
    for (const auto& [value, name] : EnumNames<T>::names) names.push_back(name);
    return {{"enum", names}};
  } else {
    Json properties = Json::object();
    Json required = Json::array();
    const auto one = [&](const auto& f) {
      using M = std::remove_cvref_t<decltype(std::declval<T&>().*(f.member))>;
      Json property = schema_of<M>();
      property["description"] = f.doc;
      if (std::isfinite(f.rules.min)) property["minimum"] = f.rules.min;
      properties[f.name] = property;
      if (f.rules.required) required.push_back(f.name);
    };
    std::apply([&](const auto&... f) { (one(f), ...); }, T::fields());
    return {{"type", "object"},
            {"properties", properties},
            {"required", required},
            {"additionalProperties", false}};
  }
}

}  // namespace detail

/// Reads an object into a struct with fields(); unknown keys and wrong types throw Error(spec).
template <class C>
C read_struct(const Json& json, const Scope& scope) {
  C out{};
  detail::read_fields(json, out, scope, false);
  return out;
}

template <class C>
Json dump_struct(const C& value) {
  return detail::dump_value(value);
}

template <class C>
std::vector<FieldDoc> field_docs() {
  std::vector<FieldDoc> docs;
  const C defaults{};
  const auto one = [&](const auto& f) {
    using M = std::remove_cvref_t<decltype(defaults.*(f.member))>;
    std::string fallback =
        *f.rules.part != '\0' ? f.rules.part : detail::dump_value(defaults.*(f.member)).dump();
    if (f.rules.required) fallback.clear();
    docs.push_back({f.name, detail::type_name<M>(), fallback, f.doc, f.rules.required});
  };
  std::apply([&](const auto&... f) { (one(f), ...); }, C::fields());
  return docs;
}

namespace detail {

template <class C>
void collect_parts(const C& config, std::vector<const AnyPart*>& out) {
  const auto one = [&](const auto& f) {
    using M = std::remove_cvref_t<decltype(config.*(f.member))>;
    if constexpr (PartSlot<M>::value) {
      if (config.*(f.member)) out.push_back(&(config.*(f.member)));
    } else if constexpr (HasFields<M>) {
      collect_parts(config.*(f.member), out);
    }
  };
  std::apply([&](const auto&... f) { (one(f), ...); }, C::fields());
}

}  // namespace detail

/// The registry entry of config C, which has fields() and info().
template <class C>
Mechanism make_mechanism(Slot slot, std::string name) {
  Mechanism m;
  m.slot = slot;
  m.name = std::move(name);
  m.info = C::info();
  m.read = [](const Json& json, const Scope& scope) -> std::shared_ptr<const Config> {
    auto config = std::make_shared<C>();
    detail::read_fields(json, *config, scope, true);
    config->complete(scope);
    config->check(scope);
    return config;
  };
  m.dump = [](const Config& config) { return detail::dump_value(dynamic_cast<const C&>(config)); };
  m.schema = [] { return detail::schema_of<C>(); };
  m.fields = [] { return field_docs<C>(); };
  m.parts = [](const Config& config) {
    std::vector<const AnyPart*> parts;
    detail::collect_parts(dynamic_cast<const C&>(config), parts);
    return parts;
  };
  return m;
}

}  // namespace tessera::spec
