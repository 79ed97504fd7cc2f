// HTTP/1.1 as far as the server needs it, without sockets: parses requests and formats responses.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/serve/api_error.h"
#include "tessera/serve/limits.h"

namespace tessera::serve {

struct HttpRequest {
  std::string method, path, query;
  std::map<std::string, std::string> headers;  // names in lower case; the first of each
  std::string body;
  int version = 11;  // 10 or 11
  bool keep_alive = true;

  /// "" if there is none.
  const std::string& header(const std::string& name) const;
};

/// Parses requests from a stream of bytes.
class RequestReader {
 public:
  explicit RequestReader(const Limits& limits);
  ~RequestReader();

  enum class Stage { head, body, done };
  /// Appends bytes and keeps those of the next request. Throws ApiError for bytes that are no
  /// request or exceed the limits; the stream cannot be parsed further then.
  Stage put(std::string_view bytes);
  Stage stage() const { return stage_; }
  /// True if a request has begun and not ended.
  bool begun() const;
  /// Number of buffered bytes.
  size_t held() const { return held_.size(); }
  /// True once if the client waits for "100 Continue".
  bool wants_continue();
  /// The request at stage `done`. Parsing continues with the next one, which put("") may complete.
  HttpRequest take();

 private:
  void read_head();
  void read_body();

  struct Parser;
  const Limits limits_;
  std::string held_;
  Stage stage_ = Stage::head;
  bool continues_ = false;
  std::unique_ptr<Parser> parser_;
  HttpRequest request_;
};

using Headers = std::vector<std::pair<std::string, std::string>>;

/// The head of a response. `length` -1: a stream, chunked if the client supports it.
std::string answer_head(const HttpRequest& request,
                        int status,
                        std::string_view type,
                        int64_t length,
                        const Headers& headers,
                        bool keep_alive);
std::string chunk_of(std::string_view bytes);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

/// "data: ...\n\n" for one line of text.
std::string event_of(std::string_view data);

/// Decodes %XX in a path; throws ApiError for invalid escapes.
std::string unescaped(std::string_view path);

}  // namespace tessera::serve
