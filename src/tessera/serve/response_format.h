// The shapes of answers: whole ones, and the events of streamed ones.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/text/chat/reply.h"

namespace tessera::serve {

using spec::Json;

/// A token that was chosen, and those that might have been.
struct LogprobJson {
  std::string bytes;
  double log_p = 0;
  struct Other {
    std::string bytes;
    double log_p = 0;
  };
  std::vector<Other> top = {};
  bool unknown = false;  // the first token of a text follows nothing
};

/// As chats show them, and as completions do; `offset` counts characters before the first.
Json chat_logprobs(const std::vector<LogprobJson>& tokens);
Json completion_logprobs(const std::vector<LogprobJson>& tokens, int64_t offset);
/// Characters of a text, which completions count in.
int64_t characters(std::string_view text);

struct Usage {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
  int64_t drafted_tokens = 0, accepted_tokens = 0;
};
Json to_json(const Usage& usage);

struct Choice {
  int64_t index = 0;
  std::string text = {}, reasoning = {};
  std::string finish_reason = {};  // "" = not yet
  std::string limit = {};          // limit_of() the text
  Json stop_reason = nullptr;      // the text or token that ended it, where one was asked for
  std::optional<std::vector<LogprobJson>> logprobs = {};
  int64_t offset = 0;  // of the text, in characters
  std::optional<std::vector<int64_t>> token_ids = {};
  std::vector<text::ToolCall> calls = {};
  int64_t first_call = 0;  // number of the first of them within the answer
  Json sources = nullptr;  // what stood before the question, where anything did
};

/// Of one request.
struct Frames {
  bool chat = false;
  std::string id;
  int64_t created = 0;
  std::string model, fingerprint;
  uint64_t seed = 0;
  bool usage = false;  // events carry "usage", null but for the last

  Json whole(const std::vector<Choice>& choices, const Usage& usage) const;
  /// The first event of a choice of a chat.
  Json role(int64_t index) const;
  /// What is new of a choice.
  Json chunk(const Choice& piece) const;
  Json usage_event(const Usage& usage) const;

 private:
  Json head(bool streamed) const;
};

}  // namespace tessera::serve
