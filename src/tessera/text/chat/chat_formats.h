// Named chat templates for models whose tokenizer has none: the common formats without tools.
// Answers and their end tokens are marked (MarkedText::answer).
//
//   chatml  <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n
//   llama3  <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>...
//   gemma   <bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nYo<end_of_turn>\n
//   zephyr  <|user|>\nHi</s>\n<|assistant|>\nYo</s>\n
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// The names, in the order above.
std::vector<std::string> chat_format_names();
/// Source of the named template, nullopt for others. It accepts an optional system message first,
/// then user and assistant in turn; it rejects others, naming the message.
std::optional<std::string> chat_format_source(std::string_view name);

}  // namespace tessera::text
