// Sockets: accepts connections, reads requests, writes responses, and enforces their timeouts. One
// I/O thread does all of it; handlers answer on other threads.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tessera/serve/exchange.h"

namespace tessera::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0 = any free port
  Limits limits;
};

class Server {
 public:
  /// Called on the I/O thread, once per request; must not block.
  using Handler = std::function<void(const ExchangePtr&)>;

  /// Throws Error(resource) if the address is not available.
  Server(const ServerOptions& options, Handler handler);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  /// Number of open connections.
  int64_t connections() const;
  /// Bytes that they buffer: partial requests and unsent responses.
  int64_t buffered_bytes() const;
  /// Serves until stop(). `tick` is called on this thread about four times a second.
  void run(const std::function<void()>& tick = {});
  /// Stops accepting and closes idle connections. Thread-safe.
  void close_door();
  /// Ends run() and closes all connections. Thread-safe.
  void stop();
  /// Number of requests that were answered or whose clients disconnected.
  int64_t answered() const;
  /// Number of requests without a complete response.
  int64_t busy() const;

  /// Called with each exchange when its response has been written or given up.
  std::function<void(const Exchange&)> on_end;

 private:
  struct State;
  class Connection;
  std::shared_ptr<State> state_;
};

}  // namespace tessera::serve
