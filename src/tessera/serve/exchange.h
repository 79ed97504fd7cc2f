// A request and its answer, in the hands of whoever answers it: on any thread, and whether or not
// the client is still there.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "tessera/base/cancel.h"
#include "tessera/serve/http.h"

namespace tessera::serve {

/// Where the bytes of an answer go. Calls come from any thread, and return at once.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void send(std::string bytes, bool last) = 0;
  /// Bytes given that the client's machine has not taken.
  virtual size_t unsent() const = 0;
};

/// One answer is given: by answer() or fail(), or by begin_events(), event() and end_events(). What
/// comes after it is left out. Where not even an error can be told, for want of memory, the
/// exchange is lost: its connection ends.
class Exchange {
 public:
  using Clock = std::chrono::steady_clock;

  Exchange(HttpRequest request, std::string id, std::shared_ptr<ByteSink> sink, bool keep_alive);

  const HttpRequest& request() const { return request_; }
  const std::string& id() const { return id_; }
  Clock::time_point arrived() const { return arrived_; }
  /// Which key the client showed, -1 = none.
  int key = -1;
  /// The address it is at.
  std::string peer;
  /// Whose turn a request counts as: a key's, else an address's.
  std::string client() const { return key >= 0 ? "key " + std::to_string(key) : peer; }
  /// Set when the client has gone: nobody reads the answer.
  CancelToken& disconnected() { return gone_; }

  /// Header fields of the answer, to be added before it begins.
  void add_header(std::string name, std::string value);
  /// X-Tessera-Warning: one line of at most 1,000 bytes, whatever names out of files it holds.
  void add_warning(const std::string& text);
  void answer(int status, std::string_view type, std::string_view body);
  void answer(const Json& json);
  void fail(const ApiError& error);
  /// The same of an exception; throws nothing, and gives up what cannot be told.
  void fail(const std::exception_ptr& error) noexcept;
  void give_up() noexcept { lost_ = true; }
  bool lost() const { return lost_.load(); }

  void begin_events();
  void event(const Json& json);
  /// The end of the events, with "[DONE]"; without, after an error's.
  void end_events(bool done);
  /// After so long a silence of a stream, a comment that keeps the connection from being taken for
  /// dead.
  void ping_after(std::chrono::milliseconds silence);
  bool streams() const { return streams_.load(); }
  size_t unsent() const { return sink_->unsent(); }

  /// The status that was answered, 0 = none yet.
  int status() const { return status_.load(); }
  bool answered() const { return ended_.load(); }
  bool keeps_alive() const { return keep_alive_; }
  /// Of the log: what is told of the request besides.
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
  CancelToken gone_;
  std::atomic<int> status_{0};
  std::atomic<bool> streams_{false}, ended_{false}, lost_{false};
  std::atomic<Clock::time_point> last_event_{};
  mutable std::mutex mutex_;  // of what follows
  Headers headers_;
  Counts counts_;
};

using ExchangePtr = std::shared_ptr<Exchange>;

}  // namespace tessera::serve
