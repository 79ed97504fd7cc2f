// Sockets: accepts connections, reads requests, writes answers, and minds the time that each of
// these may take. One thread does all of it; whoever answers does so on other threads.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tessera/serve/exchange.h"

namespace tessera::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0 = any that is free
  Limits limits;
};

class Server {
 public:
  /// Called on the I/O thread, once for each request; must not wait.
  using Handler = std::function<void(const ExchangePtr&)>;

  /// Throws Error(resource) where the address cannot be had.
  Server(const ServerOptions& options, Handler handler);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  /// Connections now.
  int64_t connections() const;
  /// Of what they hold: parts of requests, and answers that are not sent.
  int64_t buffered_bytes() const;
  /// Serves until stop(). `tick` is called on this thread about four times a second.
  void run(const std::function<void()>& tick = {});
  /// No further connection is taken, and those that wait for a request are closed. From any thread.
  void close_door();
  /// Ends run(), with all connections. From any thread.
  void stop();
  /// Requests that were answered, or whose clients have left.
  int64_t answered() const;
  /// Requests that have no answer yet, or one that is still being written.
  int64_t busy() const;

  /// Called with each exchange when its answer has been written or given up.
  std::function<void(const Exchange&)> on_end;

 private:
  struct State;
  class Connection;
  std::shared_ptr<State> state_;
};

}  // namespace tessera::serve
