// Calls of functions out of the text that a model says, as it comes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::serve {

using spec::Json;

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON of an object
};

/// How a template has its model write calls: what it must hold says which.
struct ToolFormat {
  std::string open, close;  // around a call, or in front of all of them ("" = to the end)
  bool list = false;        // one JSON list of all calls behind `open`
};

/// Nothing where the template shows none that is known:
///   <tool_call>{"name": .., "arguments": {..}}</tool_call>   each call by itself
///   [TOOL_CALLS][{"name": .., "arguments": {..}}, ..]        one list
///   {"name": .., "parameters": {..}}                         the whole answer
std::optional<ToolFormat> tool_format_of(std::string_view chat_template);

/// However the text is cut, what is handed out comes to the same.
class ToolSplitter {
 public:
  /// Without a format all is text.
  explicit ToolSplitter(std::optional<ToolFormat> format = std::nullopt);

  struct Piece {
    std::string text;
    std::optional<ToolCall> call = {};  // in place of text
  };
  /// What is certain after this text; `last`: all of it. A call that is malformed is text.
  std::vector<Piece> push(std::string_view text, bool last);
  bool called() const { return called_; }

 private:
  void close(std::vector<Piece>& out, const std::string& inner, const std::string& whole);
  void give(std::vector<Piece>& out, std::string text);

  std::optional<ToolFormat> format_;
  bool within_ = false, begun_ = false, called_ = false;
  std::string held_, space_;  // what stands before a call, which is said where it is none
};

}  // namespace tessera::serve
