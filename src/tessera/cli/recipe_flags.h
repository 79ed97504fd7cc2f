// Flags of recipe keys: the doc line and the least value are those of the recipe's field list;
// `more` follows the doc line.
#pragma once

#include <string>
#include <string_view>
#include <tuple>

#include "tessera/cli/cli.h"
#include "tessera/spec/fields.h"

namespace tessera::cli {

struct RecipeKey {
  const char* doc;
  double least;

  std::string with(std::string_view more) const { return std::string(doc).append(more); }
};

/// A key of a struct with fields(); does not compile without one.
template <class C>
consteval RecipeKey recipe_key(std::string_view name) {
  RecipeKey out{nullptr, 0};
  std::apply(
      [&](const auto&... field) {
        ((name == field.name ? void(out = {field.doc, field.rules.min}) : void()), ...);
      },
      C::fields());
  if (out.doc == nullptr) throw "there is no key of that name";
  return out;
}

template <class T>
CLI::Option* add_key(
    CLI::App& app, const char* names, const RecipeKey& key, T& value, std::string_view more = {}) {
  return app.add_option(names, value, key.with(more))
      ->check(key.least > 0 ? positive() : not_negative());
}

}  // namespace tessera::cli
