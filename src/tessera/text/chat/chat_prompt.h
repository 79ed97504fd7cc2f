// A conversation as a model reads it: by the chat template of its checkpoint, in its tokens.
//
//   const ChatPrompt prompts(tokenizer, tokenizer.chat_template(), "model");
//   const MarkedText prompt = prompts.render({.messages = messages});
//   std::vector<int32_t> ids = prompts.encode(prompt);   // the answer ends at prompts.ends()
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/text/chat/chat_template.h"
#include "tessera/text/chat/reply.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

/// Immutable, cheap to copy, for many threads.
class ChatPrompt {
 public:
  /// `clock` tells the time to conversations that have none. Throws Error(file) as ChatTemplate
  /// does.
  ChatPrompt(Tokenizer tokenizer,
             std::string source,
             const std::string& where,
             TemplateClock clock = local_time);

  /// The text. Every verb and route renders by this, so that all templates see the same: messages,
  /// tools, documents, add_generation_prompt, the tokenizer's special tokens by role (bos_token,
  /// image_token, ...), strftime_now and raise_exception, and the chat's own variables.
  /// With `goes_on` it ends with the content of the last message, which is then continued; throws
  /// Error(input) where the template does not show it as it is.
  MarkedText render(Chat chat, bool goes_on = false) const;
  std::vector<int32_t> encode(const MarkedText& text) const;
  /// The end of text, and the special token that the template puts behind an answer.
  /// `poll`: of the run that tells.
  std::vector<int64_t> ends(const TemplatePoll& poll = {}) const;
  /// What stands around the thoughts of the model: as its template has it, else <think> and
  /// </think>, since models think that way whether or not their template speaks of it.
  const ReasoningTags& reasoning() const { return reasoning_; }
  /// Whether the text has opened thoughts that are not closed yet; what was said in it opens none.
  bool thinks(const MarkedText& prompt) const;

  const ChatTemplate& chat_template() const { return template_; }

 private:
  Tokenizer tokenizer_;
  TemplateClock clock_;
  ChatTemplate template_;
  ReasoningTags reasoning_;
};

}  // namespace tessera::text
