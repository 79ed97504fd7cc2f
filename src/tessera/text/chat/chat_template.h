// Chat templates: render a conversation in the format that a model was trained on, with the
// template of its checkpoint.
//
//   const ChatTemplate chat(tokenizer.chat_template(), "model");
//   const MarkedText prompt = chat.render({.messages = {{{"role", "user"}, {"content", "Hi"}}}});
//   std::vector<int32_t> ids = tokenizer.encode(prompt, chat.source());
//
// Templates are Jinja as in transformers (trim_blocks, lstrip_blocks, loop controls, the generation
// tag, an immutable sandbox, `tojson` without HTML escapes), a subset without include, import,
// call, with, powers and recursive loops. A rendering has a budget of steps, text and depth, can be
// cancelled, and has no access to clock and files: strftime_now has the time of the caller.
//
// Text inside a generation tag is marked as an answer.
//
// Content of a conversation is marked as input, byte by byte, through all operations of the
// template, so it can never become a control token (prompt injection).
// that none of it can become a control token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/marked_text.h"

namespace tessera::text {

/// The time for strftime_now, in seconds of local time since 1970; nullopt leaves the function
/// undefined, which templates may test.
using TemplateClock = std::function<std::optional<int64_t>()>;
/// The current time at each call.
std::optional<int64_t> local_time();
/// A constant clock: the time of this call ("today"), the beginning of a day ("2024-07-26"), or
/// none ("none"). Throws Error(usage) that names `option` for other text.
TemplateClock template_clock(const std::string& date, const std::string& option);

/// Called at the beginning of a rendering and every few milliseconds; an exception ends the
/// rendering, for example after a disconnect. May be empty.
using TemplatePoll = std::function<void()>;

struct Chat {
  spec::Json messages = spec::Json::array();  // of {"role", "content", ...}
  spec::Json tools = nullptr;                 // null = none
  bool add_generation_prompt = true;          // end with the beginning of the answer
  std::optional<int64_t> now = {};            // see TemplateClock
  /// Further variables: "bos_token" and the like are template text, all others are input.
  spec::Json variables = spec::Json::object();
  TemplatePoll poll = {};
};

/// Immutable, cheap to copy, thread-safe.
class ChatTemplate {
 public:
  /// Throws Error(file), naming the line, for an invalid template or one outside the subset.
  ChatTemplate(std::string source, const std::string& where);

  /// Throws Error(input) if the template rejects the conversation or exceeds its budget, and for a
  /// role other than system, developer, user, assistant, tool or ipython.
  MarkedText render(const Chat& chat) const;
  const std::string& source() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace tessera::text
