#include "tessera/serve/server.h"

#include <array>
#include <deque>
#include <random>
#include <set>
#include <thread>

#include <fcntl.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "tessera/base/error.h"

namespace tessera::serve {

namespace asio = boost::asio;
using asio::ip::tcp;
using Code = boost::system::error_code;
using Clock = std::chrono::steady_clock;

namespace {

/// The client's own, where it is a plain word; else one that nobody else has.
std::string request_id(const HttpRequest& request) {
  const std::string& given = request.header("x-request-id");
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  if (!given.empty() && given.size() <= 128 && given.find_first_not_of(kPlain) == std::string::npos)
    return given;
  static std::mt19937_64 random{std::random_device{}()};  // of the I/O thread
  return fmt::format("req-{:016x}", random());
}

}  // namespace

struct Server::State : std::enable_shared_from_this<Server::State> {
  State(const ServerOptions& given, Handler handle)
      : options(given),
        handler(std::move(handle)),
        acceptor(context),
        pause(context),
        clock(context) {}

  void listen();
  void accept();
  void tick();
  void take(tcp::socket socket);
  void begin();
  void forget();

  ServerOptions options;
  Handler handler;
  asio::io_context context{1};
  tcp::acceptor acceptor;
  asio::steady_timer pause, clock;
  std::set<std::shared_ptr<Connection>> connections;
  std::atomic<int64_t> count{0}, busy{0}, unsent{0}, answered{0};
  std::atomic<bool> closing{false}, over{false};
  bool accepts = false, ticks = false;  // something waits for a client, for the time
  int spare = -1;                       // a descriptor to give up when there is no other left
  std::function<void()> on_tick;
  std::function<void(const Exchange&)> on_end;
};

/// All of it on the I/O thread, but for what ByteSink says.
class Server::Connection : public std::enable_shared_from_this<Server::Connection> {
 public:
  Connection(const std::shared_ptr<State>& state, tcp::socket socket)
      : state_(state),
        socket_(std::move(socket)),
        timer_(state->context),
        write_timer_(state->context),
        reader_(state->options.limits) {}

  /// Does something for this connection, which ends where that fails: the others have nothing to do
  /// with it.
  template <class Act>
  void guarded(const Act& act) noexcept {
    try {
      act();
    } catch (...) {
      close();
    }
  }

  void start() {
    Code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.set_option(asio::socket_base::keep_alive(true), ignored);
    // else the system would take megabytes for a client that does not read
    socket_.set_option(asio::socket_base::send_buffer_size(static_cast<int>(limits().send_buffer)),
                       ignored);
    const int fd = socket_.native_handle();
    const auto set = [&](int option, unsigned value) {
      ::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value);
    };
    // a peer that is gone without a word is noticed
    set(TCP_KEEPIDLE, 30);
    set(TCP_KEEPINTVL, 10);
    set(TCP_KEEPCNT, 3);
    set(TCP_USER_TIMEOUT, 30'000);
    wait_for_request();
  }

  /// Whether it only waits for the next request.
  bool idle() const { return !exchange_ && !reader_.begun(); }

  /// Whether its answer can no longer be given.
  bool lost() const { return exchange_ && exchange_->lost(); }

  void close() noexcept {
    if (closed_) return;
    closed_ = true;
    Code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
    timer_.cancel();
    write_timer_.cancel();
    if (exchange_) {
      exchange_->disconnected().request();
      end_exchange();
    }
    const auto self = shared_from_this();
    state_->connections.erase(self);
    --state_->count;
  }

  /// What an exchange writes into; it may live longer than the connection.
  class Sink final : public ByteSink {
   public:
    explicit Sink(const std::shared_ptr<Connection>& connection)
        : connection_(connection), state_(connection->state_) {}
    // what a client never took
    ~Sink() override { state_->unsent -= static_cast<int64_t>(unsent_.load()); }
    void send(std::string bytes, bool last) override {
      if (state_->over) return;
      unsent_ += bytes.size();
      state_->unsent += static_cast<int64_t>(bytes.size());
      const auto self = own.lock();
      asio::post(state_->context,
                 [connection = connection_, self, bytes = std::move(bytes), last]() mutable {
                   const size_t n = bytes.size();
                   if (const auto to = connection.lock(); to && to->sink_ == self && !to->closed_)
                     to->guarded([&] { to->write(std::move(bytes), last); });
                   else
                     self->taken(n);
                 });
    }
    size_t unsent() const override { return unsent_.load(); }
    void taken(size_t bytes) {
      unsent_ -= bytes;
      state_->unsent -= static_cast<int64_t>(bytes);
    }
    std::weak_ptr<Sink> own;

   private:
    std::atomic<size_t> unsent_{0};
    std::weak_ptr<Connection> connection_;
    std::shared_ptr<State> state_;
  };

 private:
  const Limits& limits() const { return state_->options.limits; }

  void expire_after(std::chrono::milliseconds time, int status) {
    timer_.expires_after(time);
    timer_.async_wait([self = shared_from_this(), status](const Code& error) {
      if (error || self->closed_ || self->exchange_) return;
      // who waits between two requests is not in error
      if (status == 0 || !self->reader_.begun()) return self->close();
      self->guarded([&] { self->refuse({status, "timeout", "the request did not come in time"}); });
    });
  }

  void wait_for_request() {
    if (state_->closing) return close();
    expire_after(served_ == 0 && !reader_.begun() ? limits().head_time : limits().idle_time, 408);
    // what came behind the last request may be the next one
    if (reader_.held() > 0) {
      timer_.expires_after(limits().head_time);
      take("");
      return;
    }
    read();
  }

  void read() {
    if (reading_ || closed_) return;
    reading_ = true;
    socket_.async_read_some(asio::buffer(bytes_),
                            [self = shared_from_this()](const Code& error, size_t n) {
                              self->reading_ = false;
                              if (self->closed_) return;
                              if (error) return self->close();
                              self->guarded([&] { self->take({self->bytes_.data(), n}); });
                            });
  }

  void take(std::string_view bytes) {
    if (refused_) return drain(bytes.size());
    if (exchange_) {  // the next request comes before the answer to this one
      early_ += bytes;
      if (early_.size() < limits().head_bytes) read();
      return;
    }
    const bool fresh = !reader_.begun();
    const auto before = reader_.stage();
    RequestReader::Stage stage;
    try {
      stage = reader_.put(bytes);
    } catch (const ApiError& error) {
      return refuse(error);
    }
    if (stage == RequestReader::Stage::done) return serve();
    if (reader_.wants_continue()) {
      queue_.push_back({"HTTP/1.1 100 Continue\r\n\r\n", nullptr});
      flush();
    }
    // from its first byte on
    if (stage == RequestReader::Stage::head && fresh && reader_.begun())
      expire_after(limits().head_time, 408);
    if (stage == RequestReader::Stage::body && before == RequestReader::Stage::head)
      expire_after(limits().body_time, 408);
    read();
  }

  void begin_exchange(HttpRequest request) {
    timer_.cancel();
    sink_ = std::make_shared<Sink>(shared_from_this());
    sink_->own = sink_;
    const std::string id = request_id(request);
    exchange_ =
        std::make_shared<Exchange>(std::move(request), id, sink_, !refused_ && !state_->closing);
    ++state_->busy;
    Code unknown;
    const auto peer = socket_.remote_endpoint(unknown);
    if (!unknown) exchange_->peer = peer.address().to_string();
  }

  void serve() {
    begin_exchange(reader_.take());
    ++served_;
    const ExchangePtr exchange = exchange_;
    read();  // sees the client go
    state_->handler(exchange);
  }

  /// After this nothing that the client sends can be understood.
  void refuse(const ApiError& error) {
    refused_ = true;
    begin_exchange({});
    exchange_->fail(error);
  }

  void write(std::string bytes, bool last) {
    if (!bytes.empty()) queue_.push_back({std::move(bytes), sink_});
    last_ = last_ || last;
    flush();
  }

  void flush() {
    if (decoding_ || closed_) return;
    if (queue_.empty()) {
      if (last_) finish();
      return;
    }
    decoding_ = true;
    write_timer_.expires_after(limits().write_time);
    write_timer_.async_wait([self = shared_from_this()](const Code& error) {
      if (!error && self->decoding_) self->close();
    });
    const Piece& front = queue_.front();
    socket_.async_write_some(
        asio::buffer(front.bytes.data() + written_, front.bytes.size() - written_),
        [self = shared_from_this()](const Code& error, size_t n) {
          self->decoding_ = false;
          self->write_timer_.cancel();
          if (self->closed_) return;
          if (error) return self->close();
          Piece& front = self->queue_.front();
          self->written_ += n;
          if (front.sink) front.sink->taken(n);
          if (self->written_ == front.bytes.size()) {
            self->queue_.pop_front();
            self->written_ = 0;
          }
          self->guarded([&] { self->flush(); });
        });
  }

  void end_exchange() noexcept {
    try {
      if (state_->on_end) state_->on_end(*exchange_);
    } catch (...) {
      // a line of a log that nobody can write is no reason to end
    }
    exchange_.reset();
    sink_.reset();
    --state_->busy;
    ++state_->answered;
  }

  /// The answer is written.
  void finish() {
    last_ = false;
    if (!exchange_) return;
    const bool again = exchange_->keeps_alive() && !refused_;
    end_exchange();
    if (!again) {
      // a reset would take the answer from the client
      refused_ = true;
      Code ignored;
      socket_.shutdown(tcp::socket::shutdown_send, ignored);
      expire_after(std::chrono::seconds(1), 0);
      return drain(0);
    }
    const std::string early = std::exchange(early_, {});
    if (!early.empty()) {
      try {
        if (reader_.put(early) == RequestReader::Stage::done) return serve();
      } catch (const ApiError& error) {
        return refuse(error);
      }
    }
    wait_for_request();
  }

  void drain(size_t n) {
    drained_ += n;
    constexpr size_t kMost = size_t{64} << 10;
    if (drained_ > kMost && !exchange_) return close();
    read();
  }

  struct Piece {
    std::string bytes;
    std::shared_ptr<Sink> sink;
  };

  std::shared_ptr<State> state_;
  tcp::socket socket_;
  asio::steady_timer timer_, write_timer_;
  RequestReader reader_;
  std::array<char, 16 << 10> bytes_;
  std::string early_;
  std::deque<Piece> queue_;
  size_t written_ = 0, drained_ = 0;
  int64_t served_ = 0;
  bool reading_ = false, decoding_ = false, last_ = false, refused_ = false, closed_ = false;
  ExchangePtr exchange_;
  std::shared_ptr<Sink> sink_;
};

void Server::State::listen() {
  const auto refuse = [&](const Code& error) {
    fail(ErrorKind::resource, "serve",
         "cannot listen on {} port {}: {}; expected an address of "
         "this machine, and a port that is free (--host, --port)",
         options.host, options.port, error.message());
  };
  Code error;
  asio::ip::address address =
      asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
  if (error) refuse(error);
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port));
  acceptor.open(endpoint.protocol(), error);
  if (error) refuse(error);
  acceptor.set_option(asio::socket_base::reuse_address(true), error);
  acceptor.bind(endpoint, error);
  if (error) refuse(error);
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) refuse(error);
  spare = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void Server::State::take(tcp::socket socket) {
  if (count >= options.limits.connections) return;
  const auto connection = std::make_shared<Connection>(shared_from_this(), std::move(socket));
  connections.insert(connection);
  ++count;
  connection->guarded([&] { connection->start(); });
}

void Server::State::accept() {
  acceptor.async_accept([self = shared_from_this()](const Code& error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    self->accepts = false;
    if (self->closing) return;
    if (error == asio::error::no_descriptors && self->spare >= 0) {
      // the spare one takes the client, who is sent away instead of left to wait
      ::close(self->spare);
      const int taken = ::accept(self->acceptor.native_handle(), nullptr, nullptr);
      if (taken >= 0) ::close(taken);
      self->spare = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    if (error) {
      self->pause.expires_after(std::chrono::milliseconds(50));
      self->pause.async_wait([self](const Code& stopped) {
        if (stopped) return;
        self->accepts = false;
        self->accept();
      });
      self->accepts = true;
      return;
    }
    self->take(std::move(socket));
    self->accept();
  });
  accepts = true;
}

void Server::State::tick() {
  clock.expires_after(std::chrono::milliseconds(250));
  clock.async_wait([self = shared_from_this()](const Code& error) {
    if (error) return;
    self->ticks = false;
    for (auto at = self->connections.begin(); at != self->connections.end();)
      if (const auto connection = *at++; connection->lost()) connection->close();
    if (self->on_tick) self->on_tick();
    self->tick();
  });
  ticks = true;
}

/// Waits for clients and for the time, unless something does already.
void Server::State::begin() {
  if (!ticks) tick();
  if (!accepts && !closing) accept();
}

/// After an exception nobody knows what still waits.
void Server::State::forget() {
  Code ignored;
  acceptor.cancel(ignored);
  pause.cancel(ignored);
  clock.cancel(ignored);
  accepts = ticks = false;
}

Server::Server(const ServerOptions& options, Handler handler)
    : state_(std::make_shared<State>(options, std::move(handler))) {
  state_->listen();
}

Server::~Server() {
  state_->over = true;
  while (!state_->connections.empty()) (*state_->connections.begin())->close();
  // what waits in the context holds the state, and the state the context: it has its last turn
  state_->closing = true;
  Code ignored;
  state_->acceptor.close(ignored);
  state_->pause.cancel(ignored);
  state_->clock.cancel(ignored);
  state_->on_tick = nullptr;
  state_->context.restart();
  for (bool more = true; more;) try {
      more = state_->context.poll_one() > 0;
    } catch (const std::exception&) {
      // as in run(): the next one
    }
  if (state_->spare >= 0) ::close(state_->spare);
}

int Server::port() const {
  return state_->acceptor.local_endpoint().port();
}
int64_t Server::connections() const {
  return state_->count;
}
int64_t Server::answered() const {
  return state_->answered;
}
int64_t Server::buffered_bytes() const {
  return state_->unsent + state_->count * static_cast<int64_t>(sizeof(Connection));
}
int64_t Server::busy() const {
  return state_->busy;
}

void Server::run(const std::function<void()>& tick) {
  state_->on_end = on_end;
  state_->on_tick = tick;
  for (;;) try {
      state_->begin();
      state_->context.run();
      return;
    } catch (const std::exception&) {
      // memory that lacked for the door or the clock: connections mind their own
      state_->forget();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

void Server::close_door() {
  asio::post(state_->context, [state = state_] {
    state->closing = true;
    Code ignored;
    state->acceptor.close(ignored);
    for (auto at = state->connections.begin(); at != state->connections.end();)
      if (const auto connection = *at++; connection->idle()) connection->close();
  });
}

void Server::stop() {
  asio::post(state_->context, [state = state_] {
    while (!state->connections.empty()) (*state->connections.begin())->close();
    state->context.stop();
  });
}

}  // namespace tessera::serve
