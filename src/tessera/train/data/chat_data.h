// Conversations as data sets have them, read as the messages that a chat template takes.
// Torch-free.
//
//   {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}
//   OpenAI, TRL
//   {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]} ShareGPT
//   {"instruction": "Add up.", "input": "1 2", "output": "3"} Alpaca
//   {"prompt": "1 + 2 =", "completion": " 3"}                                                  TRL
//
// What a message says of its own training is honoured: "weight" 0 or 1 (OpenAI), "train" (axolotl)
// and "loss" (ms-swift) true or false.
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

/// Messages as a chat template takes them, the tools that it is told of (null = none) and its other
/// variables ("chat_template_kwargs").
struct Conversation {
  Json messages = Json::array(), tools = nullptr, variables = Json::object();
};

/// By the keys of an example; nothing where they tell of no conversation.
std::optional<ChatLayout> chat_layout_of(const Json& example, const std::string& messages_key);

/// In words, with the keys that tell it: `Alpaca ("instruction", "output")`.
std::string described(ChatLayout layout, const Json& example, const std::string& messages_key);

/// The conversation of an example, whatever its layout. Throws Error(file) with what it found;
/// `where` begins the message.
Conversation conversation_in(const Json& example,
                             const std::string& messages_key,
                             const std::string& where);

/// Throws Error(file) for a prompt, a completion and a boolean "label": unpaired preferences (KTO),
/// of which a run on answers would learn the bad ones too.
void refuse_unpaired(const Json& example, const std::string& where);

/// A prompt and what follows it, both strings.
struct PromptAndCompletion {
  std::string prompt, completion;
};
/// Nothing where the example is of another layout, or has messages there.
std::optional<PromptAndCompletion> prompt_and_completion(const Json& example);

/// The user's message of an Alpaca example: the instruction, and its input in a line of its own.
std::string alpaca_prompt(const Json& example, const std::string& where);

/// A list of messages: at a key of an example, which may also hold one message.
Json messages_at(const Json& example, const std::string& key, const std::string& where);
/// These messages with what the example says beside them: tools and variables of the template.
Conversation with_tools(Json messages, const Json& example, const std::string& where);

/// Whether an answer is learned: messages_at() leaves "weight" 0 with those that are not.
bool is_answer(const Json& message);
bool is_learned(const Json& message);

}  // namespace tessera::train
