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
// A config with required fields other than n_heads also has
// `static Json example(const Scope&, int64_t length)`: these fields for a layer of ordinary size
// whose documents have up to `length` tokens.
//
// Supported members: bool, int64_t, double, std::string, enums with EnumNames, std::optional<T>,
// std::vector<T>, Part<slot>, and structs that have fields() themselves.
//
// The list becomes a table at run time (ObjectType), and what walks it is compiled once: a hundred
// configs cost the compiler a hundred small tables, not a hundred readers.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/spec/mechanism.h"

namespace tessera::spec {

/// Specialise for every enum used in a config: static constexpr std::array names{std::pair{E::a,
/// "a"}, ...}. Other names that are read as one of these, and never written, may stand in an array
/// `aliases` of the same kind.
template <class E>
struct EnumNames;

template <class E>
const char* enum_name(E value) {
  for (const auto& [e, name] : EnumNames<E>::names)
    if (e == value) return name;
  return "?";
}

/// Of numbers (of a list each), finite in float32: min <= x <= max, above < x < below.
struct FieldRules {
  double min = -std::numeric_limits<double>::infinity();
  double above = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  double below = std::numeric_limits<double>::infinity();
  bool required = false;
  const char* part = "";  // for Part fields: the mechanism used when the key is absent ("" = none)
  bool width = false;     // for integers: a rule on d_model may stand for it (width_rule.h)
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

/// What can be done with the values of one member type.
struct ValueType {
  std::string (*name)();
  void (*read)(const Json&, void* value, const FieldRules&, const Scope&);
  Json (*dump)(const void* value);
  Json (*schema)();
  void (*collect)(const void* value, std::vector<const AnyPart*>& out);  // the parts it holds
  AnyPart& (*part)(void* value);                                         // null unless a Part
  Slot slot;                                                             // of a Part
};

/// One line of a field list, for objects of one class.
struct FieldEntry {
  using Member = std::array<std::byte, sizeof(int FieldRules::*)>;
  const char* name;
  const char* doc;
  FieldRules rules;
  const ValueType* type;
  Member member;  // the bytes of a pointer to member
  void* (*at)(void* object, const Member& member);

  void* value(void* object) const { return at(object, member); }
  const void* value(const void* object) const { return at(const_cast<void*>(object), member); }
};

struct ObjectType {
  std::vector<FieldEntry> fields;
  Scope (*child_scope)(const void* object, Scope scope, std::string_view field) = nullptr;
};

// what walks the tables (fields.cpp)
void read_object(
    const Json& json, void* out, const ObjectType& type, const Scope& scope, bool has_type);
Json dump_object(const void* object, const ObjectType& type);
Json object_schema(const ObjectType& type);
std::vector<FieldDoc> object_docs(const void* defaults, const ObjectType& type);
/// The required fields, as far as every mechanism means the same by them: heads 64 wide.
Json common_example(const ObjectType& type, const Scope& scope);
void collect_parts(const void* object, const ObjectType& type, std::vector<const AnyPart*>& out);

bool read_boolean(const Json& json, const Scope& scope);
int64_t read_integer(const Json& json, const FieldRules& rules, const Scope& scope);
double read_number(const Json& json, const FieldRules& rules, const Scope& scope);
std::string read_string(const Json& json, const Scope& scope);
/// Its place among the names.
size_t read_name(const Json& json, const std::vector<std::string>& names, const Scope& scope);
void require_list(const Json& json, const Scope& scope);
Scope item_scope(const Scope& scope, size_t index);
std::string joined(const std::vector<std::string>& names);
Json list_schema(Json items);
Json nullable_schema(Json value);
Json part_schema(Slot slot);

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

template <class C>
const ObjectType& object_type();

template <class E>
std::vector<std::string> names_of_enum() {
  std::vector<std::string> names;
  for (const auto& [value, name] : EnumNames<E>::names) names.emplace_back(name);
  return names;
}

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
  else if constexpr (std::is_enum_v<T>)
    return joined(names_of_enum<T>());
  else
    return "object";
}

template <class T>
void read_value(const Json& json, T& out, const FieldRules& rules, const Scope& scope) {
  if constexpr (std::is_same_v<T, bool>) {
    out = read_boolean(json, scope);
  } else if constexpr (std::is_same_v<T, int64_t>) {
    out = read_integer(json, rules, scope);
  } else if constexpr (std::is_same_v<T, double>) {
    out = read_number(json, rules, scope);
  } else if constexpr (std::is_same_v<T, std::string>) {
    out = read_string(json, scope);
  } else if constexpr (IsOptional<T>::value) {
    out.reset();
    if (!json.is_null()) read_value(json, out.emplace(), rules, scope);
  } else if constexpr (IsVector<T>::value) {
    require_list(json, scope);
    out.clear();
    for (size_t i = 0; i < json.size(); ++i) {
      typename T::value_type value{};
      read_value(json[i], value, rules, item_scope(scope, i));
      out.push_back(std::move(value));
    }
  } else if constexpr (PartSlot<T>::value) {
    static_cast<AnyPart&>(out) =
        json.is_null() ? AnyPart() : read_part(PartSlot<T>::slot, json, scope);
  } else if constexpr (std::is_enum_v<T>) {
    if constexpr (requires { EnumNames<T>::aliases; })
      for (const auto& [value, alias] : EnumNames<T>::aliases)
        if (json == alias) {
          out = value;
          return;
        }
    out = EnumNames<T>::names[read_name(json, names_of_enum<T>(), scope)].first;
  } else {
    static_assert(HasFields<T>, "a config member needs fields() or a supported type");
    read_object(json, &out, object_type<T>(), scope, false);
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
    return dump_object(&value, object_type<T>());
  } else {
    return Json(value);
  }
}

template <class T>
Json schema_of() {
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, int64_t> ||
                std::is_same_v<T, std::string> || std::is_same_v<T, double>)
    return {{"type", type_name<T>()}};
  else if constexpr (IsOptional<T>::value)
    return nullable_schema(schema_of<typename T::value_type>());
  else if constexpr (IsVector<T>::value)
    return list_schema(schema_of<typename T::value_type>());
  else if constexpr (PartSlot<T>::value)
    return part_schema(PartSlot<T>::slot);
  else if constexpr (std::is_enum_v<T>)
    return {{"enum", names_of_enum<T>()}};
  else
    return object_schema(object_type<T>());
}

template <class T>
const ValueType& value_type() {
  static const ValueType type = [] {
    ValueType t{};
    t.name = [] { return type_name<T>(); };
    t.read = [](const Json& json, void* value, const FieldRules& rules, const Scope& scope) {
      read_value(json, *static_cast<T*>(value), rules, scope);
    };
    t.dump = [](const void* value) { return dump_value(*static_cast<const T*>(value)); };
    t.schema = [] { return schema_of<T>(); };
    if constexpr (PartSlot<T>::value) {
      t.slot = PartSlot<T>::slot;
      t.part = [](void* value) -> AnyPart& { return *static_cast<T*>(value); };
      t.collect = [](const void* value, std::vector<const AnyPart*>& out) {
        if (const AnyPart& part = *static_cast<const T*>(value)) out.push_back(&part);
      };
    } else if constexpr (HasFields<T>) {
      t.collect = [](const void* value, std::vector<const AnyPart*>& out) {
        collect_parts(value, object_type<T>(), out);
      };
    }
    return t;
  }();
  return type;
}

template <class C, class B, class T>
FieldEntry entry(const Field<B, T>& f) {
  FieldEntry e{f.name, f.doc, f.rules, &value_type<T>(), {}, nullptr};
  static_assert(sizeof(f.member) == sizeof(e.member));
  std::memcpy(e.member.data(), &f.member, sizeof(f.member));
  e.at = [](void* object, const FieldEntry::Member& bytes) -> void* {
    T B::*member;
    std::memcpy(&member, bytes.data(), sizeof(member));
    return &(static_cast<C*>(object)->*member);
  };
  return e;
}

template <class C>
const ObjectType& object_type() {
  static const ObjectType type = [] {
    ObjectType t;
    std::apply([&](const auto&... f) { (t.fields.push_back(entry<C>(f)), ...); }, C::fields());
    if constexpr (requires(const C& c, Scope s) { c.child_scope(s, ""); })
      t.child_scope = [](const void* object, Scope scope, std::string_view field) {
        return static_cast<const C*>(object)->child_scope(std::move(scope), field);
      };
    return t;
  }();
  return type;
}

}  // namespace detail

/// Reads an object into a struct with fields(); unknown keys and wrong types throw Error(spec).
template <class C>
C read_struct(const Json& json, const Scope& scope) {
  C out{};
  detail::read_object(json, &out, detail::object_type<C>(), scope, false);
  return out;
}

template <class C>
Json dump_struct(const C& value) {
  return detail::dump_object(&value, detail::object_type<C>());
}

template <class C>
Json struct_schema() {
  return detail::object_schema(detail::object_type<C>());
}

/// The registry entry of config C, which has fields() and info().
template <class C>
Mechanism make_mechanism(Slot slot, std::string name) {
  Mechanism m;
  m.slot = slot;
  m.name = std::move(name);
  m.info = C::info();
  m.read = [](const Json& json, const Scope& scope) -> std::shared_ptr<const Config> {
    auto config = std::make_shared<C>();
    detail::read_object(json, config.get(), detail::object_type<C>(), scope, true);
    config->complete(scope);
    config->check(scope);
    return config;
  };
  m.dump = [](const Config& config) { return dump_struct(dynamic_cast<const C&>(config)); };
  m.schema = [] { return struct_schema<C>(); };
  m.fields = [] {
    const C defaults{};
    return detail::object_docs(&defaults, detail::object_type<C>());
  };
  m.parts = [](const Config& config) {
    std::vector<const AnyPart*> parts;
    detail::collect_parts(&dynamic_cast<const C&>(config), detail::object_type<C>(), parts);
    return parts;
  };
  m.example = [](const Scope& scope, int64_t length) {
    Json json = detail::common_example(detail::object_type<C>(), scope);
    if constexpr (requires { C::example(scope, length); }) json.update(C::example(scope, length));
    return json;
  };
  return m;
}

}  // namespace tessera::spec
