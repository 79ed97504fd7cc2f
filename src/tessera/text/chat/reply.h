// What a model's answer is made of: what it thinks, what it says, and the tools that it calls.
//
//   const ToolCallFormat* format = tool_call_format_of(template_source);   // nullptr: none that is
//   known ReplyParser reader({.format = format, .thoughts = thought_tags_of(template_source),
//                       .tools = tools});
//   for (each piece of text) show(reader.push(piece));
//   show(reader.finish());
//
// How models write calls is data (tool_call_formats.json): a format is known by strings that the chat
// template holds, never by the name of a model. A call is told once it is whole; what looks like
// one and is not stays content.
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
  std::string open, close;  // around calls; without `close` they end where they end
  bool bare = false;        // a reply that is a call from its first character on needs no `open`
  Form form = Form::object;
  std::string before, between, behind;  // around the name, and behind the arguments: named, tags
  std::string key_open, key_close, value_open, value_close;  // tags
  bool attributes = false;  // tags: what stands between the key and > says of which type it is
  bool numbered = false;    // the name is written as functions.NAME:N
  std::string name_key = "name", arguments_key = "arguments", id_key, id_open;
  std::string write_before, write_between, write_behind;  // of a call that is JSON, as models do
};

/// All that are known, in the order of the table.
const std::vector<ToolCallFormat>& tool_call_formats();
/// By name; nullptr where there is none.
const ToolCallFormat* tool_call_format_named(std::string_view name);
/// The one of which a template holds all evidence, the most of it where several do; nullptr where
/// none does, or no single one.
const ToolCallFormat* tool_call_format_of(std::string_view template_source);

/// What stands around the thoughts of a model.
struct ReasoningTags {
  std::string open, close;
};
std::optional<ReasoningTags> thought_tags_of(std::string_view template_source);

struct ToolCall {
  std::string id;  // where the model gives one
  std::string name;
  std::string arguments;  // JSON
  bool operator==(const ToolCall&) const = default;
};

/// Of a whole answer, or of what has become certain of it.
struct Reply {
  std::string reasoning, content;
  std::vector<ToolCall> calls;
  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

class ReplyParser {
 public:
  struct Options {
    const ToolCallFormat* format = nullptr;  // none: no calls
    std::optional<ReasoningTags> reasoning = {};
    bool thinking = false;       // the prompt has opened the thoughts
    spec::Json tools = nullptr;  // as a request has them: types of arguments, known names
  };
  explicit ReplyParser(Options options);

  /// What is certain after a further piece of the answer, special tokens written out.
  Reply push(std::string_view text);
  /// The rest. What was read of a call that has not come to its end is content.
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
  std::string space_;      // behind what was said: part of it where more follows
  std::string call_open_;  // what has opened the call that waits
  size_t tried_ = 0;       // bytes of the call that are known not to be whole
  size_t scanned_ = 0;     // bytes of the call that `depth_` and `quoted_` follow from
  int64_t depth_ = 0;      // of brackets
  bool quoted_ = false;
  bool said_ = false;  // anything but white space
  bool called_ = false;
  bool fresh_ = true;  // of a part nothing was said yet: white space there is none of it
};

/// A whole answer at once.
Reply read_reply(std::string_view text, const ReplyParser::Options& options);

/// Free text between the tags, and `body` behind it; where the prompt has not opened the thoughts,
/// also `body` alone. The tags are single tokens where the tokenizer has them as special ones.
int32_t behind_thoughts(Grammar& grammar,
                        int32_t body,
                        const ReasoningTags& tags,
                        bool thinking,
                        const Tokenizer* tokenizer);

struct CallGrammarOptions {
  const ToolCallFormat* format = nullptr;
  spec::Json tools = nullptr;  // those that may be called
  bool required = false;       // a call from the first character on; else text may stand before
  bool parallel = true;        // several calls
  std::optional<ReasoningTags> reasoning = {};  // free text between them may come first
  bool thinking = false;                        // the prompt has opened them
  const Tokenizer* tokenizer = nullptr;         // whose special tokens some markers are
};
/// Answers whose calls, if any, are whole and have arguments of their tools' schemas. Throws
/// Error(input) for tools that are none, or schemas that no grammar holds to.
Grammar call_grammar(const CallGrammarOptions& options,
                     const std::string& where,
                     std::vector<std::string>* ignored = nullptr);

/// Throws Error(input) naming the place of what is no list of tools as OpenAI's requests have it.
void check_tools(const spec::Json& tools, const std::string& where);

}  // namespace tessera::text
