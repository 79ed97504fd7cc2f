// What the routes of a server share.
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

  /// Ends all threads and drops what is queued; more than once does nothing more.
  void end();

  // on the I/O thread
  void handle(const ExchangePtr& exchange);
  void ended(const Exchange& exchange);
  void tick(const CancelToken& stop, const std::function<bool()>& reload);

  /// Calls `answer` with the model on a worker, once it is loaded; what it throws is told, as is
  /// that it is not loaded by the deadline.
  void with_model(const ExchangePtr& exchange,
                  const std::string& name,
                  std::function<void(const ServedModelPtr& model)> answer,
                  int64_t timeout_ms = 0);
  /// Tells a client why there is no answer, and the log where it is the server's fault.
  void refuse(const ExchangePtr& exchange, const std::exception_ptr& error) const noexcept;
  /// Runs it on a worker; what it throws is told to the client.
  void work(const ExchangePtr& exchange, std::function<void()> answer);
  /// The body of a request, and what of it is unknown where that is let pass.
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
  /// A job of a request, with all that does not depend on what it asks for.
  ScheduledRequest job_of(const ExchangePtr& exchange,
                          const ServedModelPtr& model,
                          int64_t timeout_ms = 0) const;

  /// How conversations are written: by the model's template, or, where the server allows that, by
  /// the request's ("" = none). Throws ApiError(400) where there is none, or it cannot be read.
  ServedModel::Chats chats_of(const std::string& chat_template,
                              const ServedModel& model,
                              bool tools,
                              const text::TemplatePoll& poll) const;
  /// For work on a worker's thread: throws ApiError 504 once the request's deadline is over, 408
  /// once its client has gone.
  text::TemplatePoll poll_of(const ExchangePtr& exchange, int64_t timeout_ms = 0) const;

  // the routes, by file
  void add_routes();             // service.cpp: health, metrics, models, this list
  void add_model_routes();       // model_routes.cpp: what is in memory, what runs
  void add_generation_routes();  // generation_routes.cpp: completions, chats, translations
  void add_text_routes();        // text_routes.cpp: tokens
  void add_encoder_routes();     // encoder_routes.cpp: vectors, ranks, classes, masks
  void add_page_routes();        // page_routes.cpp: the page, and what it shows of models

  const ServiceOptions options;
  Metrics metrics;
  Access access;
  Routes routes;
  const int64_t created;
  std::atomic<bool> draining{false}, loading{true};
  std::atomic<int64_t> in_workers{0}, in_loading{0};
  std::unique_ptr<Scheduler> engine;
  std::unique_ptr<ModelPool> pool;
  std::unique_ptr<const retrieve::RagPipeline> asker;  // where there is an index
  std::unique_ptr<boost::asio::thread_pool> workers;
  std::unique_ptr<Server> server;

 private:
  /// 429.
  [[noreturn]] void refuse_more();
  /// Freed memory goes back where nothing is done, and now and then where much of it is free.
  void trim(Exchange::Clock::time_point now);
  void measure_memory();
  std::vector<std::weak_ptr<Exchange>> streams_;  // of the I/O thread
  Exchange::Clock::time_point drain_until_{}, busy_at_{}, trimmed_at_{};
  int64_t answered_ = 0;
  bool rested_ = true;  // nothing was done since memory was given back
};

/// An id of an answer: "chatcmpl-" and what nobody else has.
std::string fresh_id(const char* kind);
/// Throws ApiError 400 that says what the model can do instead: no later try fares better.
void need(bool can, const ServedModel& model, const char* what);

}  // namespace tessera::serve
