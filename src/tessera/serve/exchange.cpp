#include "tessera/serve/exchange.h"

namespace tessera::serve {
namespace {

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Exchange::Exchange(HttpRequest request,
                   std::string id,
                   std::shared_ptr<ByteSink> sink,
                   bool keep_alive)
    : request_(std::move(request)),
      id_(std::move(id)),
      sink_(std::move(sink)),
      keep_alive_(keep_alive && request_.keep_alive) {
  headers_.emplace_back("X-Request-Id", id_);
}

void Exchange::add_header(std::string name, std::string value) {
  const std::lock_guard lock(mutex_);
  headers_.emplace_back(std::move(name), std::move(value));
}

void Exchange::add_warning(const std::string& text) {
  std::string line = text.substr(0, 1000);
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  add_header("X-Tessera-Warning", std::move(line));
}

/// A missing piece cannot be recovered.
void Exchange::send(std::string bytes, bool last) noexcept {
  try {
    sink_->send(std::move(bytes), last);
  } catch (...) {
    give_up();
  }
}

void Exchange::answer(int status, std::string_view type, std::string_view body) {
  if (ended_) return;
  std::string bytes;
  {
    const std::lock_guard lock(mutex_);
    bytes = answer_head(request_, status, type, static_cast<int64_t>(body.size()), headers_,
                        keep_alive_);
  }
  if (request_.method != "HEAD") bytes += body;
  if (ended_.exchange(true)) return;
  status_ = status;
  send(std::move(bytes), true);
}

void Exchange::answer(const Json& json) {
  answer(200, "application/json", dumped(json));
}

void Exchange::fail(const ApiError& error) {
  if (streams_) {
    event(error.body());
    end_events(false);
    return;
  }
  if (!error.allowed().empty()) add_header("Allow", error.allowed());
  if (error.retry_after() > 0) add_header("Retry-After", std::to_string(error.retry_after()));
  answer(error.status(), "application/json", dumped(error.body()));
}

void Exchange::fail(const std::exception_ptr& error) noexcept {
  try {
    fail(api_error_of(error));
  } catch (...) {
    give_up();
  }
}

void Exchange::begin_events() {
  if (streams_ || ended_) return;
  // a client of HTTP/1.0 sees the end by the connection's
  if (request_.version < 11) keep_alive_ = false;
  const std::lock_guard lock(mutex_);
  Headers headers = headers_;
  headers.emplace_back("Cache-Control", "no-cache");
  headers.emplace_back("X-Accel-Buffering", "no");
  std::string bytes =
      answer_head(request_, 200, "text/event-stream; charset=utf-8", -1, headers, keep_alive_);
  status_ = 200;
  last_event_ = Clock::now();
  send(std::move(bytes), false);
  streams_ = true;  // from here on it may be pinged
}

void Exchange::event(const Json& json) {
  if (ended_) return;
  last_event_ = Clock::now();
  const std::string bytes = event_of(dumped(json));
  send(request_.version < 11 ? bytes : chunk_of(bytes), false);
}

void Exchange::end_events(bool done) {
  if (ended_) return;
  std::string bytes = done ? event_of("[DONE]") : std::string();
  if (request_.version >= 11) bytes = chunk_of(bytes) + std::string(kLastChunk);
  if (ended_.exchange(true)) return;
  send(std::move(bytes), true);
}

void Exchange::ping_after(std::chrono::milliseconds silence) {
  const auto now = Clock::now();
  if (!streams_ || ended_ || now - last_event_.load() < silence) return;
  last_event_ = now;
  const std::string bytes = ": ping\n\n";
  send(request_.version < 11 ? bytes : chunk_of(bytes), false);
}

void Exchange::count(const Counts& counts) {
  const std::lock_guard lock(mutex_);
  counts_ = counts;
}

Exchange::Counts Exchange::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace tessera::serve
