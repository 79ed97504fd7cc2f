// Unions by "type" as one struct: which keys belong to some of its types alone.
//
//   struct Schedule {
//     ScheduleType type = ScheduleType::cosine;
//     int64_t cycles = 1;
//     static constexpr auto fields() { ... }
//     static constexpr std::array keys_of_types{spec::KeyOfTypes{"cycles", "cosine"}};
//   };
//
// A key of another type is refused when the struct is read, and left out when it is written.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

#include "tessera/spec/fields.h"

namespace tessera::spec {

struct KeyOfTypes {
  const char* key;
  const char* types;  // names with a space between them

  std::vector<std::string> names() const {
    std::vector<std::string> out(1);
    for (const char c : std::string_view(types))
      if (c == ' ')
        out.emplace_back();
      else
        out.back() += c;
    return out;
  }
  bool has(std::string_view type) const {
    for (const std::string& name : names())
      if (name == type) return true;
    return false;
  }
};

/// Throws Error(spec) where `json`, which `value` was read from, has a key of another type.
template <class C>
void check_keys_of_type(const C& value, const Json& json, const Scope& scope) {
  const std::string_view type = enum_name(value.type);
  for (const KeyOfTypes& of : C::keys_of_types) {
    const auto found = json.find(of.key);
    if (found == json.end() || found->is_null() || of.has(type)) continue;
    const std::vector<std::string> owners = of.names();
    fail(ErrorKind::spec, scope.at(of.key).path,
         "has no meaning for type \"{}\"; only \"{}\" {} it", type, fmt::join(owners, "\", \""),
         owners.size() == 1 ? "has" : "have");
  }
}

/// dump_struct() without the keys of other types.
template <class C>
Json dump_of_type(const C& value) {
  Json json = dump_struct(value);
  for (const KeyOfTypes& of : C::keys_of_types)
    if (!of.has(enum_name(value.type))) json.erase(of.key);
  return json;
}

}  // namespace tessera::spec
