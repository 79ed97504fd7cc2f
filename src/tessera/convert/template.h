// JSON with expressions in it: how a family file writes specs and configs.
//
//   "=n_heads"                                     a string that begins with = is an expression
//   {"$if": "tied", "then": "tied", "else": "linear"}
//   {"$match": "kind", "cases": {"linear": {...}}, "else": ...}
//   [{"$for": "i in range(n_layers)", "item": {...}}]     spliced into the list
// A member whose value is absent is left out; everything else is literal.
#pragma once

#include <optional>

#include "tessera/convert/environment.h"

namespace tessera::convert {

/// "i in range(n)": a loop variable and the list it runs over.
struct Loop {
  std::string variable;
  Expr list;
  static Loop parse(std::string_view text, const std::string& where);
  /// Calls body with the locals extended by the variable, once per element.
  void run(Environment& env,
           const Local* locals,
           const std::function<void(const Local* locals)>& body) const;
  /// Those of the list, and what `body` collects within the loop.
  void collect_names(ExprNames& names, const std::function<void()>& body) const;
};

class Template {
 public:
  /// Throws Error(spec) that names the place of a malformed expression or control form.
  static std::shared_ptr<const Template> compile(const Json& json, const std::string& where);
  Json evaluate(Environment& env, const Local* locals = nullptr) const;
  void collect_paths(std::string_view root, std::set<std::string>& paths) const;
  void collect_names(ExprNames& names) const;
  const std::string& where() const { return where_; }
  /// For messages: the expression this is, if it is one.
  std::string text() const;

 private:
  enum class Kind { literal, expression, object, list, choice, match, loop };
  Kind kind_ = Kind::literal;
  std::string where_;
  Json literal_;
  std::optional<Expr> expr_;
  std::optional<Loop> loop_;
  std::vector<std::pair<std::string, std::shared_ptr<const Template>>> members_;
  std::shared_ptr<const Template> otherwise_;  // "else"
};

/// A tensor name with expressions in braces: "model.layers.{i}.mlp.up_proj.weight".
class NamePattern {
 public:
  static NamePattern parse(std::string_view text, const std::string& where);
  std::string expand(Environment& env, const Local* locals = nullptr) const;
  const std::string& text() const { return text_; }
  /// The texts between the expressions, one more than these.
  const std::vector<std::string>& literals() const { return literals_; }
  const std::vector<Expr>& exprs() const { return exprs_; }

 private:
  std::string text_;
  std::vector<std::string> literals_;  // one more than exprs_
  std::vector<Expr> exprs_;
};

}  // namespace tessera::convert
