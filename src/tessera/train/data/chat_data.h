// Conversation data sets in common layouts, converted to messages of a chat template. Torch-free.
//
//   OpenAI, TRL
//     {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}
//   ShareGPT
//     {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]}
//   Alpaca
//     {"instruction": "Add up.", "input": "1 2", "output": "3"}
//   TRL
//     {"prompt": "1 + 2 =", "completion": " 3"}
//
// Training weights of messages are respected: "weight" 0 or 1 (OpenAI), "train" (axolotl) and
// "loss" (ms-swift) true or false.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "tessera/spec/fields.h"
#include "tessera/spec/json.h"

namespace tessera::train {

using spec::Json;

enum class ChatLayout { messages, sharegpt, alpaca, prompt_completion };

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::ChatLayout> {
  using E = tessera::train::ChatLayout;
  static constexpr std::array names{
      std::pair{E::messages, "messages"}, std::pair{E::sharegpt, "sharegpt"},
      std::pair{E::alpaca, "alpaca"}, std::pair{E::prompt_completion, "prompt_completion"}};
};

namespace tessera::train {

/// Messages of a chat template, the tools (null = none) and its other variables
/// ("chat_template_kwargs").
struct Conversation {
  Json messages = Json::array(), tools = nullptr, variables = Json::object();
};

/// Detects the layout from the keys of an example; nullopt if it is no conversation.
std::optional<ChatLayout> chat_layout_of(const Json& example, const std::string& messages_key);

/// For people, with the keys that identify it: `Alpaca ("instruction", "output")`.
std::string described(ChatLayout layout, const Json& example, const std::string& messages_key);

/// The conversation of an example in any layout. Throws Error(file) with what it found; `where`
/// begins the message.
Conversation conversation_in(const Json& example,
                             const std::string& messages_key,
                             const std::string& where);

/// Throws Error(file) for a prompt, a completion and a boolean "label": unpaired preferences (KTO),
/// whose rejected answers would be trained on otherwise.
void refuse_unpaired(const Json& example, const std::string& where);

/// A prompt and its completion, both strings.
struct PromptAndCompletion {
  std::string prompt, completion;
};
/// nullopt for another layout, and for messages at these keys.
std::optional<PromptAndCompletion> prompt_and_completion(const Json& example);

/// The user's message of an Alpaca example: the instruction, and its input on a line of its own.
std::string alpaca_prompt(const Json& example, const std::string& where);

/// The list of messages at a key of an example, which may also hold one message.
Json messages_at(const Json& example, const std::string& key, const std::string& where);
/// These messages with the example's tools and template variables.
Conversation with_tools(Json messages, const Json& example, const std::string& where);

/// True for a message of the assistant.
bool is_answer(const Json& message);
/// True if it is a training target: messages_at() sets "weight" 0 for answers that are not.
bool is_learned(const Json& message);

}  // namespace tessera::train
