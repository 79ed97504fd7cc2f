// The objective "chat": answers of conversations, and to end them. Torch-free.
#pragma once

#include <optional>
#include <string>

#include "tessera/spec/fields.h"

namespace tessera::train {

enum class ChatTurns { all, last };

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

  static constexpr auto fields() {
    using C = ChatRecipe;
    using spec::field;
    return std::tuple{
        field("format", &C::format,
              "how a conversation is written: chatml, llama3, gemma or zephyr; null = by the "
              "tokenizer's own chat template"),
        field("turns", &C::turns, "the answers that are learned"),
        field("messages_key", &C::messages_key,
              "key of the list of messages in every line, each with \"role\" and \"content\"")};
  }
};

}  // namespace tessera::train
