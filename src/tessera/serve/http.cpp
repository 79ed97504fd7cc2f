#include "tessera/serve/http.h"

#include <algorithm>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http.hpp>

#include "tessera/base/error.h"

namespace tessera::serve {

namespace http = boost::beast::http;

struct RequestReader::Parser : http::request_parser<http::string_body> {};

namespace {

constexpr std::string_view kEnd = "\r\n\r\n";

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return out;
}

/// Checks that the parser omits and that other parsers treat differently.
void check_raw(std::string_view head) {
  for (size_t at = head.find("\r\n"); at != std::string_view::npos; at = head.find("\r\n", at + 2))
    if (at + 2 < head.size() && (head[at + 2] == ' ' || head[at + 2] == '\t'))
      throw ApiError(400, "bad_request",
                     "header folding (a field over several lines) is not supported");
  for (size_t i = 0; i < head.size(); ++i) {
    const auto c = static_cast<unsigned char>(head[i]);
    if ((c < 0x20 && c != '\r' && c != '\n' && c != '\t') || c == 0x7F ||
        (c == '\n' && (i == 0 || head[i - 1] != '\r')))
      throw ApiError(400, "bad_request", "control character in the request head");
  }
}

/// The path of a target, and its query.
void set_target(HttpRequest& request, std::string_view target) {
  // an absolute target of proxies
  for (const std::string_view scheme : {"http://", "https://"})
    if (target.starts_with(scheme)) {
      const size_t slash = target.find('/', scheme.size());
      target = slash == std::string_view::npos ? "/" : target.substr(slash);
    }
  const size_t end = std::min(target.find_first_of("?#"), target.size());
  request.path = unescaped(target.substr(0, end));
  if (end < target.size()) request.query = target.substr(end + 1);
}

[[noreturn]] void refuse_bytes(const boost::system::error_code& error) {
  if (error == http::error::body_limit)
    throw ApiError(413, "body_too_large", "request body too large (--max-body)");
  if (error == http::error::bad_version) throw ApiError(505, "bad_version", "expected HTTP/1.1");
  throw ApiError(400, "bad_request", "not an HTTP request: " + error.message());
}

}  // namespace

const std::string& HttpRequest::header(const std::string& name) const {
  static const std::string none;
  const auto found = headers.find(name);
  return found == headers.end() ? none : found->second;
}

RequestReader::RequestReader(const Limits& limits) : limits_(limits) {}
RequestReader::~RequestReader() = default;

bool RequestReader::begun() const {
  return stage_ != Stage::head || !held_.empty();
}

bool RequestReader::wants_continue() {
  return std::exchange(continues_, false) && stage_ == Stage::body;
}

RequestReader::Stage RequestReader::put(std::string_view bytes) {
  held_ += bytes;
  if (stage_ == Stage::head) read_head();
  if (stage_ == Stage::body) read_body();
  return stage_;
}

void RequestReader::read_head() {
  // some clients send empty lines before a request
  size_t begin = 0;
  while (held_.compare(begin, 2, "\r\n") == 0) begin += 2;
  held_.erase(0, begin);
  const size_t line = held_.find("\r\n"), end = held_.find(kEnd);
  // the method and the version stand around the target
  if (std::min(line, held_.size()) > limits_.target_bytes + 32)
    throw ApiError(414, "uri_too_long",
                   fmt::format("request line longer than {} bytes", limits_.target_bytes));
  if (std::min(end, held_.size()) > limits_.head_bytes)
    throw ApiError(431, "head_too_large",
                   fmt::format("request head longer than {} bytes", limits_.head_bytes));
  if (end == std::string::npos) return;
  const std::string head = held_.substr(0, end + kEnd.size());
  held_.erase(0, head.size());
  check_raw(std::string_view(head).substr(0, end));
  if (static_cast<size_t>(std::count(head.begin(), head.end(), '\n')) > limits_.fields + 2)
    throw ApiError(431, "too_many_fields",
                   fmt::format("request head has more than {} fields", limits_.fields));
  parser_ = std::make_unique<Parser>();
  parser_->header_limit(static_cast<uint32_t>(limits_.head_bytes + 1024));
  parser_->body_limit(limits_.body_bytes);
  parser_->eager(true);
  boost::system::error_code error;
  parser_->put(boost::asio::buffer(head), error);
  if (error == http::error::need_more) error = {};
  if (error) refuse_bytes(error);
  const auto& message = parser_->get();
  request_ = {};
  request_.method = std::string(message.method_string());
  request_.version = static_cast<int>(message.version());
  request_.keep_alive = message.keep_alive();
  for (const auto& field : message) {
    const std::string name = lower(std::string(field.name_string()));
    const bool fresh = request_.headers.emplace(name, std::string(field.value())).second;
    if (!fresh && (name == "host" || name == "content-type" || name == "authorization" ||
                   name == "content-length" || name == "transfer-encoding"))
      throw ApiError(400, "bad_request", "header " + name + " is repeated");
  }
  set_target(request_, std::string_view(message.target().data(), message.target().size()));
  const std::string coding = lower(request_.header("transfer-encoding"));
  if (!coding.empty() && coding != "chunked")
    throw ApiError(501, "bad_transfer_encoding", "Transfer-Encoding: expected chunked alone");
  if (request_.version == 11 && request_.header("host").empty())
    throw ApiError(400, "bad_request", "header Host is missing");
  const std::string expects = lower(request_.header("expect"));
  if (!expects.empty() && expects != "100-continue")
    throw ApiError(417, "bad_expectation", "Expect: expected 100-continue");
  if (!request_.header("content-encoding").empty())
    throw ApiError(415, "bad_content_encoding", "Content-Encoding: expected none");
  continues_ = !expects.empty();
  stage_ = parser_->is_done() ? Stage::done : Stage::body;
}

void RequestReader::read_body() {
  while (!parser_->is_done() && !held_.empty()) {
    boost::system::error_code error;
    const size_t used = parser_->put(boost::asio::buffer(held_), error);
    held_.erase(0, used);
    if (error && error != http::error::need_more) refuse_bytes(error);
    if (parser_->get().body().size() > limits_.body_bytes) refuse_bytes(http::error::body_limit);
    if (used == 0) break;
  }
  if (!parser_->is_done()) {
    // a line of a chunk's size that does not end
    if (held_.size() > limits_.head_bytes)
      throw ApiError(400, "bad_request", "chunk header too long");
    return;
  }
  request_.body = std::move(parser_->get().body());
  stage_ = Stage::done;
}

HttpRequest RequestReader::take() {
  parser_.reset();
  continues_ = false;
  stage_ = Stage::head;
  return std::exchange(request_, {});
}

std::string answer_head(const HttpRequest& request,
                        int status,
                        std::string_view type,
                        int64_t length,
                        const Headers& headers,
                        bool keep_alive) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", status, reason_of(status));
  const auto add = [&](std::string_view name, std::string_view value) {
    out += name;
    out += ": ";
    // header values must not contain line ends
    for (const char c : value) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c;
    out += "\r\n";
  };
  if (!type.empty()) add("Content-Type", type);
  if (length >= 0)
    add("Content-Length", std::to_string(length));
  else if (request.version == 11)
    add("Transfer-Encoding", "chunked");
  add("Connection", keep_alive ? "keep-alive" : "close");
  for (const auto& [name, value] : headers) add(name, value);
  return out + "\r\n";
}

std::string chunk_of(std::string_view bytes) {
  return bytes.empty() ? std::string() : fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

std::string event_of(std::string_view data) {
  return fmt::format("data: {}\n\n", data);
}

std::string unescaped(std::string_view path) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] != '%') {
      out += path[i];
      continue;
    }
    const int high = i + 2 < path.size() ? digit(path[i + 1]) : -1,
              low = i + 2 < path.size() ? digit(path[i + 2]) : -1;
    if (high < 0 || low < 0 || (high == 0 && low == 0))
      throw ApiError(400, "bad_request", "% in the path without two hexadecimal digits");
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

}  // namespace tessera::serve
