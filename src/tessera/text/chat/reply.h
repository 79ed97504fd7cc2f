// Parses a model's answer into reasoning, content and tool calls.
//
//   const ToolCallFormat* format = tool_call_format_of(template_source);  // nullptr: unknown
//   ReplyParser parser({.format = format, .tools = tools});
//   for (each piece of text) show(parser.push(piece));
//   show(parser.finish());
//
// Formats of tool calls are data (tool_call_formats.json): a format is detected by strings in the
// chat template, never by the name of a model. A call is reported once it is complete; a malformed
// call stays content.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/spec/json.h"
#include "tessera/text/grammar/grammar.h"

namespace tessera::text {

class Tokenizer;

struct ToolCallFormat {
  enum class Form {
    object,  // {"name": ..., "arguments": {...}}, one or more
    list,    // [{...}, ...]
    named,   // name, then its arguments as JSON
    tags,    // name, then each argument between tags
  };
  std::string name;
  std::vector<std::string> evidence;
  std::string open, close;  // around calls; without `close` a call ends with its JSON
  bool bare = false;        // an answer that is a call from its first character on needs no `open`
  Form form = Form::object;
  std::string before, between, after;  // around the name, and after the arguments: named, tags
  std::string key_open, key_close, value_open, value_close;  // tags
  bool attributes = false;  // tags: text between the key and > is the type of the argument
  bool numbered = false;    // the name is written as functions.NAME:N
  std::string name_key = "name", arguments_key = "arguments", id_key, id_open;
  std::string write_before, write_between, write_after;  // for writing a JSON call as models do
};

/// All known formats, in the order of the table.
const std::vector<ToolCallFormat>& tool_call_formats();
/// By name; nullptr if unknown.
const ToolCallFormat* tool_call_format_named(std::string_view name);
/// The format whose evidence strings are all in a template, the one with most if several are;
/// nullptr if there is none or it is ambiguous.
const ToolCallFormat* tool_call_format_of(std::string_view template_source);

/// The tags around a model's reasoning.
struct ReasoningTags {
  std::string open, close;
};
std::optional<ReasoningTags> thought_tags_of(std::string_view template_source);

struct ToolCall {
  std::string id;  // if the model writes one
  std::string name;
  std::string arguments;  // JSON
  bool operator==(const ToolCall&) const = default;
};

/// A complete answer, or its new final part.
struct Reply {
  std::string reasoning, content;
  std::vector<ToolCall> calls;
  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

class ReplyParser {
 public:
  struct Options {
    const ToolCallFormat* format = nullptr;  // nullptr: no tool calls
    std::optional<ReasoningTags> reasoning = {};
    bool thinking = false;       // the prompt ends inside reasoning
    spec::Json tools = nullptr;  // as in requests: known names and types of arguments
  };
  explicit ReplyParser(Options options);

  /// Appends a piece of the answer, special tokens included as text; returns what is final.
  Reply push(std::string_view text);
  /// Ends the answer. An incomplete call is returned as content.
  Reply finish();

 private:
  enum class Place { reasoning, content, call };

  void read(Reply& out, bool last);
  bool read_thoughts(Reply& out, bool last);
  bool read_content(Reply& out, bool last);
  void begin_call();
  bool read_call(Reply& out, bool last);
  bool may_be_whole();
  void say(std::string& into, std::string_view text);

  Options options_;
  Place place_ = Place::content;
  std::string waiting_;
  std::string space_;      // trailing white space, part of the content if more follows
  std::string call_open_;  // the opening tag of the pending call
  size_t tried_ = 0;       // bytes of the call that are known to be incomplete
  size_t scanned_ = 0;     // bytes of the call that `depth_` and `quoted_` cover
  int64_t depth_ = 0;      // of brackets
  bool quoted_ = false;
  bool has_content_ = false;  // any content except white space
  bool called_ = false;
  bool fresh_ = true;  // at the beginning of a part, where white space is dropped
};

/// Parses a complete answer.
Reply read_reply(std::string_view text, const ReplyParser::Options& options);

/// Grammar: free text between the reasoning tags, then `body`; if the prompt is not inside
/// reasoning, also `body` alone. The tags are single tokens if the tokenizer has them as special
/// tokens.
int32_t after_reasoning(Grammar& grammar,
                        int32_t body,
                        const ReasoningTags& tags,
                        bool thinking,
                        const Tokenizer* tokenizer);

struct CallGrammarOptions {
  const ToolCallFormat* format = nullptr;
  spec::Json tools = nullptr;  // the functions that may be called
  bool required =
      false;  // the answer is a call from the first character on; otherwise text may come first
  bool parallel = true;                         // several calls are allowed
  std::optional<ReasoningTags> reasoning = {};  // reasoning may come first
  bool thinking = false;                        // the prompt ends inside it
  const Tokenizer* tokenizer = nullptr;         // some markers are its special tokens
};
/// Answers whose calls, if any, are complete and have arguments that match the schemas. Throws
/// Error(input) for invalid tools and unsupported schemas.
Grammar call_grammar(const CallGrammarOptions& options,
                     const std::string& where,
                     std::vector<std::string>* ignored = nullptr);

/// Throws Error(input) with the path of an invalid value in a list of tools (OpenAI's format).
void check_tools(const spec::Json& tools, const std::string& where);

}  // namespace tessera::text
