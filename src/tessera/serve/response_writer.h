// One request's texts on their way from the engine to its client: whole, or event by event.
#pragma once

#include <memory>
#include <vector>

#include "tessera/infer/engine/request.h"
#include "tessera/retrieve/rag.h"
#include "tessera/serve/exchange.h"
#include "tessera/serve/scheduler.h"
#include "tessera/serve/response_format.h"
#include "tessera/text/chat/reply.h"

namespace tessera::serve {

/// What cut a text that ends for its length, as answers say it: "max_tokens", "context" or "time";
/// empty where none did. Of the first two it is the context, where more tokens would not help.
std::string limit_of(const infer::Generation& text);

/// 504.
ApiError past_deadline();
/// Tells the client why there is no answer; false where there is one to give.
bool fail_unless_done(Exchange& exchange, FinishStatus ending, const std::exception_ptr& error);

struct ResponseOptions {
  Frames frames;
  bool stream = false;
  /// How the text is taken apart: what the model thinks, says and calls; all of it is said without.
  std::optional<text::ReplyParser::Options> reply = {};
  bool token_ids = false;
  bool logprobs = false;                            // of each token
  std::vector<std::string> echo = {};               // what the texts of each prompt begin with
  std::vector<std::vector<int64_t>> echo_ids = {};  // their tokens, where chances are asked for
  int64_t choices = 1;                              // of each prompt
  std::vector<int64_t> stop_ids = {};               // those that the client asked for
  std::vector<retrieve::AugmentedPrompt> asked =
      {};                     // of each prompt, where passages are before it
  int64_t prompt_tokens = 0;  // of all prompts
  bool timings = false;       // every event of a stream has them, else the last alone
  bool content = false;       // the first text is "content" too, with llama.cpp's words of its end
  Limits limits = {};
};

/// On the engine's thread, but for its construction.
class ResponseWriter : public std::enable_shared_from_this<ResponseWriter> {
 public:
  ResponseWriter(ExchangePtr exchange, ServedModelPtr model, ResponseOptions options, size_t texts);

  /// Has the request tell this answer, as text `index`.
  void listen(infer::Request& request, size_t index);
  /// The engine begins with it.
  void begin();
  /// Hands on what is new, unless the client is behind with reading.
  void flush();
  /// Whether so much is not read that there need be no more for now.
  bool is_behind();
  void end(std::vector<infer::Generation> made,
           FinishStatus ending,
           const std::exception_ptr& error);

 private:
  struct Text {
    std::optional<text::ReplyParser> reader;
    std::vector<text::ToolCall> calls;
    bool called = false;
    int64_t given_calls = 0;
    bool begun = false;
    std::string text, reasoning;  // not handed on yet, where it streams; else all
    std::string said;             // all that was handed on, where sources are to be found in it
    std::vector<LogprobJson> logprobs;
    std::vector<int64_t> ids;
    int64_t offset = 0;  // characters before `text`
    int64_t tokens = 0, reasoning_tokens = 0, cached = 0;
    bool within = false;  // reasons
    bool has_news() const { return !text.empty() || !reasoning.empty() || !calls.empty(); }
  };
  static void add(Text& text, std::string_view piece);
  static void take_in(Text& text, text::Reply reply);
  void begin(Text& text, size_t index);
  Choice take(Text& text, size_t index);
  void echo_logprobs(Text& text, size_t index, const infer::Generation& made);
  LogprobJson logprob_of(const infer::PositionLogprobs& logprobs) const;
  std::string bytes_of(int64_t id) const;
  Json timings(const Usage& usage) const;
  Usage usage_so_far() const;
  static Json content_of(const Choice& choice, const Usage& usage);
  size_t held() const;

  ExchangePtr exchange_;
  ServedModelPtr model_;
  ResponseOptions options_;
  std::vector<Text> texts_;
  bool behind_ = false;
  Exchange::Clock::time_point begun_{}, first_{};
};

}  // namespace tessera::serve
