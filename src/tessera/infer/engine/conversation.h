// A conversation of a user and a model: its messages, as a chat changes them and a file holds them,
// and the prompt that fits the context. Torch-free.
//
//   Conversation chat;
//   chat.add("user", "Hi");
//   const text::MarkedText prompt = chat.prompt(prompts, {.longest = 4096, .shift = true}).text;
//   chat.add("assistant", answer);
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/spec/json.h"
#include "tessera/text/chat/chat_prompt.h"

namespace tessera::infer {

/// A value: a copy is what a failed answer is undone by.
class Conversation {
 public:
  const spec::Json& messages() const { return messages_; }
  /// Content of the system message; "" = none.
  std::string system() const;
  void set_system(const std::string& text);
  void add(const char* role, const std::string& text);
  /// Content of the last message, of which there is one.
  std::string last() const;

  /// Removes the last answer, if that is the last message; false unless a question is then the
  /// last.
  bool remove_answer();
  /// Removes the last question, if that is the last message.
  void remove_question();
  /// Removes all but the system message.
  void clear();

  /// A message a line, as JSON.
  void save(const std::filesystem::path& path) const;
  /// Throws Error(file) for a line that is no message, with its number.
  static Conversation load(const std::filesystem::path& path);

  struct Context {
    int64_t longest = 0;  // tokens of a sequence; 0 = no limit
    bool shift = false;   // drop the oldest messages where the prompt is longer
    /// Instead of the last message's content: with retrieved passages, say. The conversation itself
    /// would soon be full of them.
    std::optional<std::string> last = {};
  };
  struct Prompt {
    text::MarkedText text;
    bool dropped_more = false;  // messages that earlier prompts had
  };
  /// The text that the model goes on with. Where it would be longer than the context, the oldest
  /// messages are dropped two by two until half of the context is free, now and in later prompts;
  /// the system message and the last one stay.
  Prompt prompt(const text::ChatPrompt& prompts, const Context& context);
  /// Messages that prompts leave out.
  int64_t dropped() const { return static_cast<int64_t>(dropped_); }

 private:
  bool ends_with(const char* role) const;

  spec::Json messages_ = spec::Json::array();
  size_t dropped_ = 0;
};

}  // namespace tessera::infer
