// The syntax tree of a chat template.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/jinja/jinja_value.h"

namespace tessera::text::jinja {

enum class Kind {
  // expressions
  constant,
  name,
  list,
  tuple,
  dict,
  attribute,
  item,
  slice,
  call,
  filter,
  test,
  unary,
  binary,
  compare,
  condition,
  argument,
  // statements
  body,
  output,
  data,
  if_,
  for_,
  set,
  set_block,
  macro,
  filter_block,
  generation,
  break_,
  continue_
};

struct Node;
using NodePointer = std::unique_ptr<Node>;

/// What the children are, by kind:
///   attribute, unary: [of]; item: [of, key]; slice: [of, begin, end, step], null where left out
///   call: [function, arguments...]; filter, test: [of, arguments...], name; argument: [value],
///   name binary: [left, right], name; compare: [first, rest...], names; condition: [value, if,
///   else?] dict: [key, value, ...]; output: [value]; if_: [condition, body, condition, body, ...,
///   else?] for_: [items, condition?, body, else?], names = targets; set: [value], names; an
///   attribute of a namespace has name = its own; set_block: [body, filter?]; macro: [body,
///   defaults...], names = parameters; filter_block: [body, filter with a null child];
///   generation: [body]
struct Node {
  Kind kind;
  std::string name = {};
  std::vector<std::string> names = {};
  Value constant = {};
  std::vector<NodePointer> children = {};
  int depth = 1, line = 0;
  bool varargs = false, kwargs = false;  // of a macro: its body uses varargs or kwargs
};

/// Throws Error(file), naming the line, for an invalid or unsupported template.
NodePointer parse(std::string_view source, const std::string& where);

/// Renders the template with these variables. Throws Error(input) with the line, or with the
/// template's own message (raise_exception), and whatever `poll` throws (see Budget).
Text render(const Node& root,
            std::vector<std::pair<std::string, Value>> variables,
            std::function<void()> poll = {});

}  // namespace tessera::text::jinja
