// Built-in ways to write a conversation as one text, by name. A model's own template (Tokenizer::
// chat_template) is a program; these are what most of them come to without tools.
//
//   chatml  <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n
//   llama3  <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>...
//   gemma   <bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nYo<end_of_turn>\n
//   zephyr  <|user|>\nHi</s>\n<|assistant|>\nYo</s>\n
// Special tokens are written out: encode() takes them as such by `parse_special`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

struct ChatFormat {
  std::string_view name;
  std::string_view begin;                    // before all
  std::string_view open, behind;             // around the role of a turn
  std::string_view end, gap;                 // what ends a turn, and stands between two
  std::string_view assistant = "assistant";  // what the role is called
  bool system = true;    // a turn of its own; else its text opens the first turn of the user
  bool trimmed = false;  // without white space around what is said

  /// What ends an answer, which a model learns to say.
  std::string stop() const { return std::string(end); }
};

/// The names, in the order above.
std::vector<std::string> chat_format_names();
/// Throws Error(usage) for a name that is not there.
const ChatFormat& chat_format(std::string_view name);

struct ChatText {
  struct Span {
    size_t begin = 0, end = 0;  // bytes; what ends the turn is in it
    size_t message = 0;
  };
  std::string text;
  std::vector<Span> answers;  // of the assistant
};

/// `answer_next`: behind the last turn an answer is asked for. Throws Error(input) naming the
/// message whose role is not known or does not take its turn: a system first or nowhere, and then a
/// user and an assistant, one after the other.
ChatText render_chat(const ChatFormat& format,
                     const std::vector<ChatMessage>& messages,
                     bool answer_next = false);

}  // namespace tessera::text
