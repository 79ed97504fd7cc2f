// The tree that Expr::parse builds and the evaluator walks. Private to this layer.
#pragma once

#include "tessera/convert/expr.h"

namespace tessera::convert {

struct Expr::Node {
  enum class Kind {
    literal,      // value
    name,         // text
    member,       // kids[0] . text
    index,        // kids[0] [ kids[1] ]
    call,         // text ( kids )
    list,         // [ kids ]
    object,       // { keys: kids }
    loop,         // [ kids[0] for text in kids[1] (if kids[2]) ]
    negate,       // - kids[0]
    logical_not,  // not kids[0]
    binary,       // kids[0] text kids[1]
    choice,       // kids[1] if kids[0] else kids[2]
  };
  Kind kind = Kind::literal;
  std::string text;  // name, member, function, operator or loop variable
  Json value;
  std::vector<std::string> keys;
  std::vector<std::unique_ptr<const Node>> kids;
  std::string source;  // the text of this node, for messages
};

/// What a function of the language gets.
struct Call {
  const Expr::Node& node;
  std::span<const Json> arguments;
  const std::string& where;
  Environment& env;
};

struct Builtin {
  size_t min_arguments, max_arguments;
  Json (*function)(const Call&);
};

/// Null when there is none of that name.
const Builtin* find_builtin(std::string_view name);

/// The names of all, and of the functions that an importer adds.
std::vector<std::string> function_names();

inline constexpr size_t kMaxJoined = 10'000;  // bytes of a string that is made of others

/// For messages: short text of a value.
std::string shown(const Json& value);
double number_of(const Json& value, const Expr::Node& node, std::string_view where);
int64_t integer_of(const Json& value, const Expr::Node& node, std::string_view where);
Json arithmetic(
    char op, const Json& a, const Json& b, const Expr::Node& node, std::string_view where);
bool equal(const Json& a, const Json& b);

}  // namespace tessera::convert
