// The expression language of family files: a small, strict, side-effect-free language in strings.
//
//   config.num_key_value_heads ?? n_heads          a key, else a value
//   'pairs' if layout == 'interleaved' else 'rows'  conditional
//   [i % 6 != 5 for i in range(n_layers)]           a list by index
//   pick(config.hidden_act, activations)            a table that names what it knows when it fails
//
// Values are JSON plus `absent`, which a missing key evaluates to and which member access carries
// on. Numbers are int64 (overflow is an error) and double; `/` of integers that divide evenly is an
// integer. Grammar and functions: docs/guide/families.md. Limits: 2,000 bytes of text, 64 levels of
// nesting, and per environment 5 million evaluation steps. Malformed text throws Error(spec); a
// failing evaluation throws Error(file), both naming the place.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::convert {

using spec::Json;

inline Json absent() {
  return Json(Json::value_t::discarded);
}
inline bool is_absent(const Json& value) {
  return value.is_discarded();
}

class Environment;

/// Loop variables and parameters, innermost first.
struct Local {
  std::string_view name;
  const Json& value;
  const Local* outer;
};

/// Names in expressions.
struct ExprNames {
  std::map<std::string, std::string> used, called;  // a name: the place of its first use
  std::set<std::string> bound;                      // loop variables
  std::set<std::string> texts;                      // literal strings
  bool joins = false;                               // whether sums or functions may make others
  std::multiset<std::string> locals;  // loop variables and parameters around what is collected
};

class Expr {
 public:
  /// `where` is the place in messages: "qwen2: hf.read.n_heads".
  static Expr parse(std::string_view text, std::string where);

  Json evaluate(Environment& env, const Local* locals = nullptr) const;
  /// A condition: the value must be true or false.
  bool test(Environment& env, const Local* locals = nullptr) const;
  /// The value must be a whole number.
  int64_t integer(Environment& env, const Local* locals = nullptr) const;

  const std::string& text() const { return text_; }
  const std::string& where() const { return where_; }
  /// Adds "a.b.c" for every chain root.a.b.c of literal names in the text.
  void collect_paths(std::string_view root, std::set<std::string>& paths) const;
  void collect_names(ExprNames& names) const;

  struct Node;

 private:
  std::shared_ptr<const Node> root_;
  std::string text_;
  std::string where_;
};

}  // namespace tessera::convert
