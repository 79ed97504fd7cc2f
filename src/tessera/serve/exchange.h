// An HTTP request and its response, as handlers see it: on any thread, whether or not the client is
// still connected.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "tessera/base/cancel.h"
#include "tessera/serve/http.h"

namespace tessera::serve {

/// Receives the bytes of a response. Thread-safe; calls do not block.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void send(std::string bytes, bool last) = 0;
  /// Bytes that the client's machine has not accepted.
  virtual size_t unsent() const = 0;
};

/// Exactly one response is sent: with answer() or fail(), or with begin_events(), event() and
/// end_events(). Later calls have no effect. Thread-safe. If not even an error can be sent for want
/// of memory, the exchange is lost and its connection is closed.
class Exchange {
 public:
  using Clock = std::chrono::steady_clock;

  Exchange(HttpRequest request, std::string id, std::shared_ptr<ByteSink> sink, bool keep_alive);

  const HttpRequest& request() const { return request_; }
  const std::string& id() const { return id_; }
  Clock::time_point arrived() const { return arrived_; }
  /// Index of the client's API key, -1 = none.
  int key = -1;
  /// The client's address.
  std::string peer;
  /// Identity for fair scheduling: the key, or else the address.
  std::string client() const { return key >= 0 ? "key " + std::to_string(key) : peer; }
  /// Requested when the client has disconnected.
  CancelToken& disconnected() { return disconnected_; }

  /// Adds a response header, before the response begins.
  void add_header(std::string name, std::string value);
  /// X-Tessera-Warning: one line of at most 1,000 bytes, also with names from files.
  void add_warning(const std::string& text);
  void answer(int status, std::string_view type, std::string_view body);
  void answer(const Json& json);
  void fail(const ApiError& error);
  /// Sends the error of an exception; throws nothing, and gives up what cannot be sent.
  void fail(const std::exception_ptr& error) noexcept;
  void give_up() noexcept { lost_ = true; }
  bool lost() const { return lost_.load(); }

  void begin_events();
  void event(const Json& json);
  /// Ends the stream, with "[DONE]" or, after an error event, without.
  void end_events(bool done);
  /// After this time without an event, sends a comment, so that proxies keep the connection open.
  void ping_after(std::chrono::milliseconds silence);
  bool streams() const { return streams_.load(); }
  size_t unsent() const { return sink_->unsent(); }

  /// Status of the response, 0 = none yet.
  int status() const { return status_.load(); }
  bool answered() const { return ended_.load(); }
  bool keeps_alive() const { return keep_alive_; }
  /// Further values for the log.
  struct Counts {
    int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
    double first_token_seconds = 0;
    std::string model = {}, finish = {};
  };
  void count(const Counts& counts);
  Counts counts() const;

 private:
  void send(std::string bytes, bool last) noexcept;

  HttpRequest request_;
  std::string id_;
  std::shared_ptr<ByteSink> sink_;
  bool keep_alive_;
  const Clock::time_point arrived_ = Clock::now();
  CancelToken disconnected_;
  std::atomic<int> status_{0};
  std::atomic<bool> streams_{false}, ended_{false}, lost_{false};
  std::atomic<Clock::time_point> last_event_{};
  mutable std::mutex mutex_;  // of what follows
  Headers headers_;
  Counts counts_;
};

using ExchangePtr = std::shared_ptr<Exchange>;

}  // namespace tessera::serve
