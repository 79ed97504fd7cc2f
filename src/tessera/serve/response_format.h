// JSON of responses: complete ones, and the events of streams.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/text/chat/reply.h"

namespace tessera::serve {

using spec::Json;

/// A chosen token and its alternatives, with log-probabilities.
struct LogprobJson {
  std::string bytes;
  double log_p = 0;
  struct Other {
    std::string bytes;
    double log_p = 0;
  };
  std::vector<Other> top = {};
  bool unknown = false;  // the first token of a text has no prediction
};

/// In the format of chats and of completions; `offset`: number of characters before the first
/// token.
Json chat_logprobs(const std::vector<LogprobJson>& tokens);
Json completion_logprobs(const std::vector<LogprobJson>& tokens, int64_t offset);
/// Number of characters (code points) of a text, the unit of offsets in completions.
int64_t characters(std::string_view text);

struct Usage {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
  int64_t drafted_tokens = 0, accepted_tokens = 0;
};
Json to_json(const Usage& usage);

struct Choice {
  int64_t index = 0;
  std::string text = {}, reasoning = {};
  std::string finish_reason = {};  // "" = not finished
  std::string limit = {};          // limit_of() the text
  Json stop_reason = nullptr;      // the stop string or token of the request that ended it
  std::optional<std::vector<LogprobJson>> logprobs = {};
  int64_t offset = 0;  // of the text, in characters
  std::optional<std::vector<int64_t>> token_ids = {};
  std::vector<text::ToolCall> calls = {};
  int64_t first_call = 0;  // number of the first of them within the response
  Json sources = nullptr;  // the passages before the question, if any
};

/// Of one request.
struct Frames {
  bool chat = false;
  std::string id;
  int64_t created = 0;
  std::string model, fingerprint;
  uint64_t seed = 0;
  bool usage = false;  // events have "usage", null except in the last

  Json whole(const std::vector<Choice>& choices, const Usage& usage) const;
  /// The first event of a choice of a chat.
  Json role(int64_t index) const;
  /// An event with the new part of a choice.
  Json chunk(const Choice& piece) const;
  Json usage_event(const Usage& usage) const;

 private:
  Json head(bool streamed) const;
};

}  // namespace tessera::serve
