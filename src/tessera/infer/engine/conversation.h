// A conversation between a user and a model: the list of messages, how a chat changes it, its file,
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

/// The messages of a chat, a value type: copy it to undo a failed answer. Not thread-safe. prompt()
/// never changes the messages; it only leaves the oldest ones out.
class Conversation {
 public:
  const spec::Json& messages() const { return messages_; }
  /// Content of the system message; "" = none.
  std::string system() const;
  void set_system(const std::string& text);
  void add(const char* role, const std::string& text);
  /// Content of the last message. There must be one.
  std::string last() const;

  /// Removes the last message if it is the assistant's. Returns true if the last message is then
  /// the user's.
  bool remove_answer();
  /// Removes the last message if it is the user's.
  void remove_question();
  /// Removes all messages except the system message.
  void clear();

  /// JSON lines: one message a line.
  void save(const std::filesystem::path& path) const;
  /// Throws Error(file) with the line number for a line that is no message.
  static Conversation load(const std::filesystem::path& path);

  struct Context {
    int64_t longest = 0;  // max. tokens of the prompt, see prompt(); 0 = no limit
    bool shift = false;   // drop the oldest messages if the prompt is longer
    /// Replaces the last message's content in the prompt, for example by a version with retrieved
    /// passages. The messages keep the short version.
    std::optional<std::string> last = {};
  };
  struct Prompt {
    text::MarkedText text;
    bool dropped_more = false;  // this prompt lacks messages that earlier ones had
  };
  /// Renders the chat template. If the prompt is longer than the context and `shift` is set, the
  /// oldest messages are dropped in pairs until half of the context is free, for this and all later
  /// prompts. The system message and the last message stay.
  Prompt prompt(const text::ChatPrompt& prompts, const Context& context);
  /// Number of messages that prompts leave out.
  int64_t dropped() const { return static_cast<int64_t>(dropped_); }

 private:
  bool ends_with(const char* role) const;

  spec::Json messages_ = spec::Json::array();
  size_t dropped_ = 0;
};

}  // namespace tessera::infer
