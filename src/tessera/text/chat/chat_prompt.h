// Renders a conversation with the chat template of a checkpoint and tokenizes it.
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

/// Immutable, cheap to copy, thread-safe.
class ChatPrompt {
 public:
  /// `clock`: time for conversations without one. Throws Error(file) as ChatTemplate does.
  ChatPrompt(Tokenizer tokenizer,
             std::string source,
             const std::string& where,
             TemplateClock clock = local_time);

  /// Renders the text. Every command and route uses this function, so all templates get the same
  /// variables: messages, tools, documents, add_generation_prompt, the tokenizer's special tokens
  /// by role (bos_token, image_token, ...), strftime_now and raise_exception, and the chat's own
  /// variables. With `goes_on` the text ends with the content of the last message, which is then
  /// continued; throws Error(input) if the template does not render that content unchanged.
  MarkedText render(Chat chat, bool goes_on = false) const;
  std::vector<int32_t> encode(const MarkedText& text) const;
  /// Stop tokens: the end of text, and the special token that the template writes after an answer.
  /// `poll`: called during the rendering that detects it.
  std::vector<int64_t> ends(const TemplatePoll& poll = {}) const;
  /// The tags around reasoning: those of the template, otherwise <think> and </think>, because
  /// models use them even if their template does not mention them.
  const ReasoningTags& reasoning() const { return reasoning_; }
  /// True if the prompt ends inside reasoning. Tags in message contents do not count.
  bool thinks(const MarkedText& prompt) const;

  const ChatTemplate& chat_template() const { return template_; }

 private:
  Tokenizer tokenizer_;
  TemplateClock clock_;
  ChatTemplate template_;
  ReasoningTags reasoning_;
};

}  // namespace tessera::text
