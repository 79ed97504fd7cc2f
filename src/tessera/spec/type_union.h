// Unions by "type": an object whose key "type" names the struct that has its other keys.
//
//   struct Linear { static constexpr const char* kName = "linear"; ... fields() };
//   struct Cosine { static constexpr const char* kName = "cosine"; ... fields() };
//   using Shape = std::variant<Linear, Cosine>;
//
//   read_union<Shape>({{"type", "cosine"}, {"cycles", 2}}, scope)
//
// Without "type" an object is of the first alternative. A key of another type is an unknown key.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/spec/fields.h"

namespace tessera::spec {

/// Calls f(C{}) for every alternative C of the union, in order.
template <class Union, class F>
void for_each_type(const F& f) {
  [&]<size_t... I>(std::index_sequence<I...>) {
    (f(std::variant_alternative_t<I, Union>{}), ...);
  }
  (std::make_index_sequence<std::variant_size_v<Union>>());
}

template <class Union>
std::vector<std::string> type_names() {
  std::vector<std::string> names;
  for_each_type<Union>([&](const auto& one) { names.emplace_back(one.kName); });
  return names;
}

/// The type of a value, as in "type".
template <class Union>
const char* type_of(const Union& value) {
  return std::visit([](const auto& one) { return one.kName; }, value);
}

/// Throws Error(spec) for an unknown type, unknown keys and wrong values.
template <class Union>
Union read_union(const Json& json, const Scope& scope) {
  const std::vector<std::string> names = type_names<Union>();
  std::string type = names.front();
  if (json.is_object() && json.contains("type"))
    type = names[detail::read_name(json["type"], names, scope.at("type"))];
  Union out;
  for_each_type<Union>([&]<class C>(C value) {
    if (type != C::kName) return;
    detail::read_object(json, &value, detail::object_type<C>(), scope, true);
    out = std::move(value);
  });
  return out;
}

/// "type", then the keys of that type with every default.
template <class Union>
Json dump_union(const Union& value) {
  Json json = Json::object();
  json["type"] = type_of(value);
  json.update(std::visit([](const auto& one) { return dump_struct(one); }, value));
  return json;
}

/// The keys of all types with their defaults.
template <class Union>
Json dump_all_types() {
  Json json = Json::object();
  for_each_type<Union>([&](const auto& one) { json.update(dump_struct(one)); });
  return json;
}

/// The schemas of all types, as a list.
template <class Union>
Json type_schemas() {
  Json schemas = Json::array();
  for_each_type<Union>([&]<class C>(const C&) {
    Json schema = struct_schema<C>();
    Json properties = {{"type", {{"const", C::kName}}}};
    properties.update(schema["properties"]);
    schema["properties"] = std::move(properties);
    if (!schemas.empty()) schema["required"].push_back("type");
    schemas.push_back(std::move(schema));
  });
  return schemas;
}

template <class Union>
Json union_schema(const std::string& description) {
  return {{"description", description}, {"anyOf", type_schemas<Union>()}};
}

namespace detail {

template <template <class> class W, class Union>
struct Wrapped;
template <template <class> class W, class... C>
struct Wrapped<W, std::variant<C...>> {
  using type = std::variant<W<C>...>;
};

template <class First, class Union>
struct Extended;
template <class First, class... C>
struct Extended<First, std::variant<C...>> {
  using type = std::variant<First, C...>;
};

}  // namespace detail

/// The union of W<C> for every alternative C, where W derives from C and adds keys.
template <template <class> class W, class Union>
using WrappedUnion = typename detail::Wrapped<W, Union>::type;

/// The union of First and every alternative of the union.
template <class First, class Union>
using ExtendedUnion = typename detail::Extended<First, Union>::type;

}  // namespace tessera::spec
