// Writes the generated text of one request to its client, complete or as events.
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

/// Name of the limit that ended a text in responses: "max_tokens", "context" or "time"; empty if
/// none. If the first two are both reached, it is the context.
std::string limit_of(const infer::Generation& text);

/// 504.
ApiError past_deadline();
/// Sends the error of a request that did not finish; false if there is a result to send.
bool fail_unless_done(Exchange& exchange, FinishStatus ending, const std::exception_ptr& error);

struct ResponseOptions {
  Frames frames;
  bool stream = false;
  /// How text is parsed into reasoning, content and tool calls; without, all of it is content.
  std::optional<text::ReplyParser::Options> reply = {};
  bool token_ids = false;
  bool logprobs = false;                              // of each token
  std::vector<std::string> echo = {};                 // echoed prompts
  std::vector<std::vector<int64_t>> echo_ids = {};    // their tokens, with log-probabilities
  int64_t choices = 1;                                // of each prompt
  std::vector<int64_t> stop_ids = {};                 // those of the request
  std::vector<retrieve::AugmentedPrompt> asked = {};  // of each prompt, if passages precede it
  int64_t prompt_tokens = 0;                          // of all prompts
  bool timings = false;  // in every event of a stream, otherwise in the last only
  bool content = false;  // llama.cpp's format: text as "content", with its words for the end
  Limits limits = {};
};

/// Turns the callbacks of a request's sequences into one response. Shares ownership of its exchange
/// and model. Runs on the scheduler's thread, except for its constructor. A slow client never
/// blocks it: text is buffered and merged, and client_is_slow() pauses generation. An exception of
/// a callback ends the request with an error response.
class ResponseWriter : public std::enable_shared_from_this<ResponseWriter> {
 public:
  ResponseWriter(ExchangePtr exchange, ServedModelPtr model, ResponseOptions options, size_t texts);

  /// Sets the callbacks of the request with this index.
  void listen(infer::Request& request, size_t index);
  /// Called when the request's first prompt is submitted to the engine.
  void begin();
  /// Sends new text, unless the client reads slowly.
  void flush();
  /// True if so much is unread that generation should pause.
  bool client_is_slow();
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
    std::string text, reasoning;  // not sent yet; without a stream, all
    std::string generated;        // all text sent, if citations are searched in it
    std::vector<LogprobJson> logprobs;
    std::vector<int64_t> ids;
    int64_t offset = 0;  // characters before `text`
    int64_t tokens = 0, reasoning_tokens = 0, cached = 0;
    bool within = false;  // inside reasoning
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
  bool slow_ = false;
  Exchange::Clock::time_point begun_{}, first_{};
};

}  // namespace tessera::serve
