#include "tessera/train/data/chat_data.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/train/data/data_file.h"

namespace tessera::train {
namespace {

// Keys of prompts and answers, those of TRL first.
constexpr std::array kPromptKeys = {"prompt", "question", "query", "input"};
constexpr std::array kCompletionKeys = {"completion", "response", "answer", "output"};
constexpr std::array kInstructionInputs = {"input", "context"};
constexpr std::array kInstructionOutputs = {"output", "response", "completion", "answer"};
constexpr std::array kSystemKeys = {"system", "system_prompt"};

const Json* find(const Json& example, const std::string& key) {
  const auto found = example.find(key);
  return found == example.end() || found->is_null() ? nullptr : &*found;
}

/// The first of the keys that an example has; "" for none.
template <size_t n>
std::string first_key(const Json& example, const std::array<const char*, n>& keys) {
  for (const char* key : keys)
    if (find(example, key) != nullptr) return key;
  return "";
}

/// Errors of one example.
struct ExampleErrors {
  std::string where;
  [[noreturn]] void bad(const std::string& what, std::string_view expected) const {
    fail(ErrorKind::file, "data", "{}: {}; expected {}", where, what, expected);
  }
};

/// The training weight of a message.
std::optional<bool> training_flag(Json& message,
                                  const ExampleErrors& place,
                                  const std::string& which) {
  std::optional<bool> learned;
  const auto say = [&](const char* key, bool value) {
    if (learned && *learned != value)
      place.bad(fmt::format("{}: \"{}\" contradicts another key", which, key),
                "one of \"weight\", \"train\" and \"loss\"");
    learned = value;
  };
  if (const Json* weight = find(message, "weight")) {
    if (!weight->is_number() || (*weight != 0 && *weight != 1))
      place.bad(fmt::format("{}: \"weight\" is {}", which, weight->dump().substr(0, 40)), "0 or 1");
    say("weight", *weight == 1);
  }
  for (const char* key : {"train", "loss"})
    if (const Json* train = find(message, key)) {
      if (!train->is_boolean())
        place.bad(fmt::format("{}: \"{}\" is {}", which, key, found_kind(*train)), "true or false");
      say(key, train->get<bool>());
    }
  for (const char* key : {"train_detail", "training_detail"})
    if (const Json* detail = find(message, key); detail != nullptr && !detail->empty())
      place.bad(fmt::format("{}: \"{}\" chooses parts of a message", which, key),
                "\"train\": true or false, of the whole message");
  for (const char* key : {"weight", "train", "loss", "train_detail", "training_detail"})
    message.erase(key);
  return learned;
}

/// ShareGPT's role names.
std::string role_of(const std::string& role) {
  if (role == "human") return "user";
  for (const char* name : {"gpt", "chatgpt", "bing", "bard", "model"})
    if (role == name) return "assistant";
  return role == "observation" ? "tool" : role;
}

/// Content parts (OpenAI) joined into one string.
std::string joined_parts(const Json& parts, const ExampleErrors& place, const std::string& which) {
  std::string text;
  for (const Json& part : parts) {
    const bool is_text = part.is_object() && part.value("type", Json("text")) == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text)
      place.bad(fmt::format("{}: \"content\" holds a part that is no text", which),
                "a string, or parts {\"type\": \"text\", \"text\": ...}");
    text += part["text"].get<std::string>();
  }
  return text;
}

Json message_of(Json message,
                const ExampleErrors& place,
                const std::string& which,
                const std::string& key) {
  const auto bad = [&](const std::string& what) {
    place.bad(what, fmt::format("an object with a list \"{}\" of messages, each with strings "
                                "\"role\" and \"content\"",
                                key));
  };
  if (!message.is_object()) bad(fmt::format("{} is {}", which, found_kind(message)));
  for (const auto& [from, to] : {std::pair("from", "role"), std::pair("value", "content")})
    if (!message.contains(to) && message.contains(from)) {
      message[to] = std::move(message[from]);
      message.erase(from);
    }
  if (!message.contains("role") || !message["role"].is_string())
    bad(fmt::format("{} has no string \"role\"", which));
  message["role"] = role_of(message["role"].get<std::string>());
  if (message["role"] == "function_call")
    place.bad(fmt::format("{}: role \"function_call\"", which),
              "a message of the assistant with \"tool_calls\"");
  // messages with tool calls may have no content
  const Json* calls = find(message, "tool_calls");
  if (calls == nullptr || calls->empty()) message.erase("tool_calls");
  if (message.contains("content") && message["content"].is_array())
    message["content"] = joined_parts(message["content"], place, which);
  const bool has_content = message.contains("content") && message["content"].is_string();
  if (!has_content && !message.contains("tool_calls"))
    bad(fmt::format("{} has no string \"content\"", which));
  const std::optional<bool> learned = training_flag(message, place, which);
  if (learned == true && !is_answer(message))
    place.bad(
        fmt::format("{} of \"{}\" is to be learned", which, message["role"].get<std::string>()),
        "such a key with messages of the assistant, the only ones that are learned");
  if (learned == false && is_answer(message)) message["weight"] = 0;
  return message;
}

Json message(const char* role, std::string content) {
  return {{"role", role}, {"content", std::move(content)}};
}

/// A string of an example; "" where it is missing or null.
std::string text_at(const Json& example, const std::string& key, const ExampleErrors& place) {
  const Json* value = key.empty() ? nullptr : find(example, key);
  if (value == nullptr) return "";
  if (!value->is_string())
    place.bad(fmt::format("\"{}\" is {}", key, found_kind(*value)), "a string");
  return value->get<std::string>();
}

/// The system prompt before the messages, unless they have one.
void put_system(const Json& example, Json& messages, const ExampleErrors& place) {
  const std::string system = text_at(example, first_key(example, kSystemKeys), place);
  const bool has_one =
      messages.front()["role"] == "system" || messages.front()["role"] == "developer";
  if (system.empty() || has_one) return;
  messages.insert(messages.begin(), message("system", system));
}

/// The history of an Alpaca example as in LLaMA-Factory: lists of a question and its answer.
void put_history(const Json& example, Json& messages, const ExampleErrors& place) {
  const Json* history = find(example, "history");
  if (history == nullptr) return;
  const char* expected = "a list of lists [question, answer]";
  if (!history->is_array())
    place.bad(fmt::format("\"history\" is {}", found_kind(*history)), expected);
  for (const Json& turn : *history) {
    if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string())
      place.bad("\"history\" holds another value", expected);
    messages.push_back(message("user", turn[0].get<std::string>()));
    messages.push_back(message("assistant", turn[1].get<std::string>()));
  }
}

Json alpaca_messages(const Json& example, const ExampleErrors& place) {
  Json messages = Json::array();
  put_history(example, messages, place);
  messages.push_back(message("user", alpaca_prompt(example, place.where)));
  messages.push_back(
      message("assistant", text_at(example, first_key(example, kInstructionOutputs), place)));
  return messages;
}

/// A string as one message, or the messages of a list.
Json messages_or_text(const Json& example,
                      const std::string& key,
                      const char* role,
                      const ExampleErrors& place) {
  if (example[key].is_string())
    return Json::array({message(role, example[key].get<std::string>())});
  return messages_at(example, key, place.where);
}

Json prompt_messages(const Json& example, const ExampleErrors& place) {
  const std::string prompt = first_key(example, kPromptKeys),
                    completion = first_key(example, kCompletionKeys);
  // unpaired preferences and labelled steps are other kinds of data
  if (const Json* label = find(example, "label"); label != nullptr && label->is_boolean())
    place.bad(
        fmt::format("\"{}\", \"{}\" and \"label\": unpaired preferences (KTO)", prompt, completion),
        "completions to learn, or pairs with \"chosen\" and \"rejected\"");
  Json messages = messages_or_text(example, prompt, "user", place);
  for (Json& one : messages_or_text(example, completion, "assistant", place))
    messages.push_back(std::move(one));
  return messages;
}

/// Tools as a list, or as the JSON text of one.
Json tools_of(const Json& example, const ExampleErrors& place) {
  const Json* tools = find(example, "tools");
  if (tools == nullptr) return nullptr;
  Json list = *tools;
  if (list.is_string()) {
    const auto text = list.get<std::string>();
    if (text.find_first_not_of(" \t\r\n") == text.npos) return nullptr;
    list = spec::parse_json(text, place.where + ": tools");
  }
  if (!list.is_array())
    place.bad(fmt::format("\"tools\" is {}, no list", found_kind(list)), "a list of tools");
  return list.empty() ? Json(nullptr) : list;
}

Json variables_of(const Json& example, const ExampleErrors& place) {
  const Json* variables = find(example, "chat_template_kwargs");
  if (variables == nullptr) return Json::object();
  if (!variables->is_object())
    place.bad(fmt::format("\"chat_template_kwargs\" is {}", found_kind(*variables)), "an object");
  for (const auto& [name, value] : variables->items())
    if (name.ends_with("_token"))
      place.bad(fmt::format("\"chat_template_kwargs\" sets \"{}\"", name),
                "variables that are no tokens");
  return *variables;
}

}  // namespace

bool is_answer(const Json& message) {
  return message["role"] == "assistant";
}

bool is_learned(const Json& message) {
  return is_answer(message) && !message.contains("weight");
}

std::optional<ChatLayout> chat_layout_of(const Json& example, const std::string& messages_key) {
  if (!example.is_object()) return std::nullopt;
  if (example.contains(messages_key)) return ChatLayout::messages;
  if (find(example, "conversations") != nullptr) return ChatLayout::sharegpt;
  if (find(example, "instruction") != nullptr && !first_key(example, kInstructionOutputs).empty())
    return ChatLayout::alpaca;
  if (!first_key(example, kPromptKeys).empty() && !first_key(example, kCompletionKeys).empty())
    return ChatLayout::prompt_completion;
  return std::nullopt;
}

std::string described(ChatLayout layout, const Json& example, const std::string& messages_key) {
  const auto two = [](const char* name, const std::string& a, const std::string& b) {
    return fmt::format("{} (\"{}\", \"{}\")", name, a, b);
  };
  switch (layout) {
    case ChatLayout::messages:
      return fmt::format("conversations of messages (\"{}\")", messages_key);
    case ChatLayout::sharegpt:
      return "ShareGPT (\"conversations\")";
    case ChatLayout::alpaca:
      return two("Alpaca", "instruction", first_key(example, kInstructionOutputs));
    case ChatLayout::prompt_completion:
      return two("prompt and completion", first_key(example, kPromptKeys),
                 first_key(example, kCompletionKeys));
  }
  return "";
}

Json messages_at(const Json& example, const std::string& key, const std::string& where) {
  const ExampleErrors place{where};
  const auto bad = [&](const std::string& what) {
    place.bad(what, fmt::format("an object with a list \"{}\" of messages, each with strings "
                                "\"role\" and \"content\"",
                                key));
  };
  const auto list = example.find(key);
  if (list == example.end()) bad(fmt::format("\"{}\" is missing", key));
  if (list->is_object()) return Json::array({message_of(*list, place, "the message", key)});
  if (!list->is_array() || list->empty())
    bad(list->is_array() ? "the list is empty"
                         : fmt::format("\"{}\" is {}", key, found_kind(*list)));
  Json out = Json::array();
  for (size_t i = 0; i < list->size(); ++i)
    out.push_back(message_of((*list)[i], place, fmt::format("message {}", i + 1), key));
  return out;
}

std::string alpaca_prompt(const Json& example, const std::string& where) {
  const ExampleErrors place{where};
  std::string prompt = text_at(example, "instruction", place);
  const std::string input = text_at(example, first_key(example, kInstructionInputs), place);
  if (!prompt.empty() && !input.empty()) prompt += '\n';
  prompt += input;
  if (prompt.empty()) place.bad("\"instruction\" is empty", "the instruction");
  return prompt;
}

void refuse_unpaired(const Json& example, const std::string& where) {
  if (chat_layout_of(example, "messages") != ChatLayout::prompt_completion) return;
  const Json* label = find(example, "label");
  if (label == nullptr) return;
  // tables have strings
  std::string word = label->is_string() ? label->get<std::string>() : label->dump();
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (word != "true" && word != "false" && word != "0" && word != "1") return;
  ExampleErrors{where}.bad(
      fmt::format("\"label\" is {}: unpaired preferences (KTO) are not supported", word),
      "pairs (\"chosen\", \"rejected\") for preference optimization, or the examples with label "
      "true alone, without \"label\", for supervised fine-tuning");
}

std::optional<PromptAndCompletion> prompt_and_completion(const Json& example) {
  if (chat_layout_of(example, "messages") != ChatLayout::prompt_completion) return std::nullopt;
  const Json &prompt = example[first_key(example, kPromptKeys)],
             &completion = example[first_key(example, kCompletionKeys)];
  if (!prompt.is_string() || !completion.is_string()) return std::nullopt;
  return PromptAndCompletion{prompt.get<std::string>(), completion.get<std::string>()};
}

Conversation conversation_in(const Json& example,
                             const std::string& messages_key,
                             const std::string& where) {
  const ExampleErrors place{where};
  const std::optional<ChatLayout> layout = chat_layout_of(example, messages_key);
  if (!layout && example.is_object() && messages_key == "messages" && !example.empty()) {
    std::vector<std::string> names;
    for (const auto& [name, value] : example.items()) names.push_back('"' + name + '"');
    names.resize(std::min<size_t>(names.size(), 10));
    place.bad(fmt::format("\"messages\" is missing; found {}", fmt::join(names, ", ")),
              "\"messages\", \"conversations\", \"instruction\" and \"output\", or \"prompt\" and "
              "\"completion\"");
  }
  Json messages;
  switch (layout.value_or(ChatLayout::messages)) {
    case ChatLayout::messages:
      messages = messages_at(example, messages_key, where);
      break;
    case ChatLayout::sharegpt:
      messages = messages_at(example, "conversations", where);
      break;
    case ChatLayout::alpaca:
      messages = alpaca_messages(example, place);
      break;
    case ChatLayout::prompt_completion:
      messages = prompt_messages(example, place);
      break;
  }
  put_system(example, messages, place);
  return with_tools(std::move(messages), example, where);
}

Conversation with_tools(Json messages, const Json& example, const std::string& where) {
  const ExampleErrors place{where};
  return {std::move(messages), tools_of(example, place), variables_of(example, place)};
}

}  // namespace tessera::train
