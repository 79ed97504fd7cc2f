// The objective "chat": answers of conversations. Torch-free.
#pragma once

#include <string>

#include "tessera/spec/fields.h"

namespace tessera::train {

enum class ChatTurns { all, last };
enum class ChatObjective { chat };

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::ChatTurns> {
  using E = tessera::train::ChatTurns;
  static constexpr std::array names{std::pair{E::all, "all"}, std::pair{E::last, "last"}};
};
template <>
struct tessera::spec::EnumNames<tessera::train::ChatObjective> {
  using E = tessera::train::ChatObjective;
  static constexpr std::array names{std::pair{E::chat, "chat"}};
};

namespace tessera::train {

struct ChatRecipe {
  ChatObjective type = ChatObjective::chat;
  std::string format = "chatml";
  ChatTurns turns = ChatTurns::all;
  std::string messages_key = "messages";

  static constexpr auto fields() {
    using C = ChatRecipe;
    using spec::field;
    return std::tuple{
        field("type", &C::type, "what is learned: the answers of conversations, and to end them",
              {.required = true}),
        field("format", &C::format,
              "how a conversation is written: chatml, llama3, gemma or zephyr"),
        field("turns", &C::turns, "the answers that are learned"),
        field("messages_key", &C::messages_key,
              "key of the list of messages in every line, each with \"role\" and \"content\"")};
  }
};

}  // namespace tessera::train
