// State that the routes of a server share.
#pragma once

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>

#include "tessera/serve/response_writer.h"
#include "tessera/serve/bodies.h"
#include "tessera/serve/service.h"

namespace tessera::serve {

struct ServiceState : std::enable_shared_from_this<ServiceState> {
  explicit ServiceState(const ServiceOptions& given);
  ~ServiceState();

  /// Joins all threads and drops queued work; may be called repeatedly.
  void end();

  // on the I/O thread
  void handle(const ExchangePtr& exchange);
  void ended(const Exchange& exchange);
  void tick(const CancelToken& stop, const std::function<bool()>& reload);

  /// Calls `answer` on a worker once the model is loaded. Exceptions become error responses, and so
  /// does a model that is not loaded by the deadline.
  void with_model(const ExchangePtr& exchange,
                  const std::string& name,
                  std::function<void(const ServedModelPtr& model)> answer,
                  int64_t timeout_ms = 0);
  /// Sends an error response, and logs it if the server is at fault.
  void refuse(const ExchangePtr& exchange, const std::exception_ptr& error) const noexcept;
  /// Runs `answer` on a worker; exceptions become error responses.
  void work(const ExchangePtr& exchange, std::function<void()> answer);
  /// The parsed body; unknown fields of a lenient server are listed in a header.
  template <class Read>
  auto body_of(const ExchangePtr& exchange, const Read& read) {
    std::vector<std::string> ignored;
    auto body = read(parse_body(exchange->request().body, options.server.limits),
                     options.lenient ? &ignored : nullptr);
    std::string names;
    for (const std::string& name : ignored) names += (names.empty() ? "" : ", ") + name;
    if (!names.empty()) exchange->add_header("X-Tessera-Ignored", names.substr(0, 1000));
    return body;
  }
  Exchange::Clock::time_point deadline_of(const ExchangePtr& exchange, int64_t timeout_ms) const;
  /// A scheduler entry with everything that does not depend on the body.
  ScheduledRequest job_of(const ExchangePtr& exchange,
                          const ServedModelPtr& model,
                          int64_t timeout_ms = 0) const;

  /// The chat template: the model's, or the request's if the server allows that ("" = none). Throws
  /// ApiError(400) if there is none or it is invalid.
  ServedModel::Chats chats_of(const std::string& chat_template,
                              const ServedModel& model,
                              bool tools,
                              const text::TemplatePoll& poll) const;
  /// For work on a worker thread: throws ApiError 504 past the request's deadline, 408 once its
  /// client has disconnected.
  text::TemplatePoll poll_of(const ExchangePtr& exchange, int64_t timeout_ms = 0) const;

  // the routes, by file
  void add_routes();             // service.cpp: health, metrics, models, routes
  void add_model_routes();       // model_routes.cpp: loaded models, running requests
  void add_generation_routes();  // generation_routes.cpp: completions, chats, translations
  void add_text_routes();        // text_routes.cpp: tokenization
  void
  add_encoder_routes();    // encoder_routes.cpp: embeddings, reranking, classification, fill-mask
  void add_page_routes();  // page_routes.cpp: the web UI and its data

  const ServiceOptions options;
  Metrics metrics;
  Access access;
  Routes routes;
  const int64_t created;
  std::atomic<bool> draining{false}, loading{true};
  std::atomic<int64_t> in_workers{0}, in_loading{0};
  std::unique_ptr<Scheduler> engine;
  std::unique_ptr<ModelPool> pool;
  std::unique_ptr<const retrieve::RagPipeline> asker;  // if there is an index
  std::unique_ptr<boost::asio::thread_pool> workers;
  std::unique_ptr<Server> server;

 private:
  /// 429.
  [[noreturn]] void refuse_more();
  /// Returns freed memory when idle, and regularly if much of it is free.
  void trim(Exchange::Clock::time_point now);
  void measure_memory();
  std::vector<std::weak_ptr<Exchange>> streams_;  // of the I/O thread
  Exchange::Clock::time_point drain_until_{}, busy_at_{}, trimmed_at_{};
  int64_t answered_ = 0;
  bool rested_ = true;  // nothing was done since memory was returned
};

/// An id for a response: "chatcmpl-" and a unique suffix.
std::string fresh_id(const char* kind);
/// Throws ApiError 400 with what the model supports (400 because retries cannot succeed).
void need(bool can, const ServedModel& model, const char* what);

}  // namespace tessera::serve
