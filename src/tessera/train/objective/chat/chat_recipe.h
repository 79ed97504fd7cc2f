// The objective "chat" (supervised fine-tuning): answers of conversations and their end.
// Torch-free.
#pragma once

#include <optional>
#include <string>

#include "tessera/spec/fields.h"

namespace tessera::train {

enum class ChatTurns { all, last };

/// Default date of strftime_now() in chat templates: constant, so that a recipe has the same
/// samples on every day.
inline constexpr const char* kTemplateDate = "2025-01-01";

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::ChatTurns> {
  using E = tessera::train::ChatTurns;
  static constexpr std::array names{std::pair{E::all, "all"}, std::pair{E::last, "last"}};
};

namespace tessera::train {

struct ChatRecipe {
  static constexpr const char* kType = "chat";
  std::optional<std::string> format = {};
  ChatTurns turns = ChatTurns::all;
  std::string messages_key = "messages";
  std::string date = kTemplateDate;

  /// True if prompts and completions are concatenated without a chat template.
  bool plain() const { return format == "none"; }

  static constexpr auto fields() {
    using C = ChatRecipe;
    using spec::field;
    return std::tuple{
        field("format", &C::format,
              "how a conversation is written: chatml, llama3, gemma or zephyr; null = by the "
              "tokenizer's own chat template; none: \"prompt\" and \"completion\", joined as they "
              "are"),
        field("date", &C::date,
              "date that strftime_now() of the chat template returns, such as 2024-07-26; none = "
              "undefined"),
        field("turns", &C::turns, "answers in the loss: all turns, or the last"),
        field(
            "messages_key", &C::messages_key,
            "key of the list of messages in every line, each with \"role\" and \"content\"; lines "
            "without it may be ShareGPT, Alpaca, or prompt and completion")};
  }
};

}  // namespace tessera::train
