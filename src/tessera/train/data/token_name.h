// A token in a recipe: by its text in the tokenizer ("[MASK]"), or by its id, which may be beyond
// those of the tokenizer (256 and up for "bytes").
#pragma once

#include <string>
#include <variant>

#include "tessera/spec/fields.h"

namespace tessera::text {
class Tokenizer;
}

namespace tessera::train {

struct TokenName {
  std::variant<std::string, int64_t> name = {};
};

/// Throws Error(spec) at `where` for a name that the tokenizer does not have, and for an id outside
/// `vocab`.
int64_t id_of(const TokenName& token,
              const text::Tokenizer& tokenizer,
              int64_t vocab,
              const std::string& where);

}  // namespace tessera::train

namespace tessera::spec::detail {

template <>
inline std::string type_name<train::TokenName>() {
  return "token or id";
}

template <>
inline void read_value<train::TokenName>(const Json& json,
                                         train::TokenName& out,
                                         const FieldRules&,
                                         const Scope& scope) {
  if (json.is_string()) {
    out.name = json.get<std::string>();
    return;
  }
  if (!json.is_number_integer())
    fail(ErrorKind::spec, scope.path, "found {}; expected a token of the tokenizer, or an id",
         kind_of(json));
  out.name = read_integer(json, {.min = 0}, scope);
}

template <>
inline Json dump_value<train::TokenName>(const train::TokenName& value) {
  return std::visit([](const auto& name) { return Json(name); }, value.name);
}

template <>
inline Json schema_of<train::TokenName>() {
  return {{"type", {"string", "integer"}}};
}

}  // namespace tessera::spec::detail
