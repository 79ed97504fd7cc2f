// Chat templates: the text that a model was trained to read a conversation as, made by the template
// of its checkpoint.
//
//   const ChatTemplate chat(tokenizer.chat_template(), "model");
//   const MarkedText prompt = chat.render({.messages = {{{"role", "user"}, {"content", "Hi"}}}});
//   std::vector<int32_t> ids = tokenizer.encode(prompt, chat.source());
//
// Templates are Jinja as transformers runs it (trim_blocks, lstrip_blocks, loop controls, the
// generation tag, an immutable sandbox, `tojson` without escapes of HTML), a subset without
// include, import, call, with, powers and recursive loops. A run has a budget of steps, text and
// depth, may be ended from outside, and sees neither clock nor files: strftime_now tells the time
// that the caller gives.
//
// What stands between the tags of a generation is marked as an answer.
//
// What a conversation holds stays input through all operations of the template, byte by byte, so
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
/// The time of each call.
std::optional<int64_t> local_time();
/// A clock that stands: at the time of this call ("today"), at the begin of a day ("2024-07-26"),
/// or none ("none"). Throws Error(usage) that names `option` for another text.
TemplateClock template_clock(const std::string& date, const std::string& option);

/// Called at the begin of a run of a template and every few milliseconds of it; what it throws ends
/// the run, as where nobody waits for the text any more. May be empty.
using TemplatePoll = std::function<void()>;

struct Chat {
  spec::Json messages = spec::Json::array();  // of {"role", "content", ...}
  spec::Json tools = nullptr;                 // null = none
  bool add_generation_prompt = true;          // the beginning of the answer
  std::optional<int64_t> now = {};            // see TemplateClock
  /// Further variables: "bos_token" and its like are text of the template, all others are input.
  spec::Json variables = spec::Json::object();
  TemplatePoll poll = {};
};

/// Immutable, cheap to copy, for many threads.
class ChatTemplate {
 public:
  /// Throws Error(file), naming the line, for what is no template or not of the subset.
  ChatTemplate(std::string source, const std::string& where);

  /// Throws Error(input) where the template refuses the conversation or exceeds its budget, and for
  /// a role that is not system, developer, user, assistant, tool or ipython.
  MarkedText render(const Chat& chat) const;
  const std::string& source() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace tessera::text
