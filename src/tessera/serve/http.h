// HTTP/1.1 as far as the server needs it, without a socket: requests out of bytes, answers into
// bytes.
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

  /// "" where there is none.
  const std::string& header(const std::string& name) const;
};

/// Reads one request after the other out of a stream of bytes.
class RequestReader {
 public:
  explicit RequestReader(const Limits& limits);
  ~RequestReader();

  enum class Stage { head, body, done };
  /// Takes bytes, and keeps what belongs to the next request. Throws ApiError for what is no
  /// request, or more than the limits allow: then nothing that follows can be understood.
  Stage put(std::string_view bytes);
  Stage stage() const { return stage_; }
  /// Whether bytes of a request have come that has not ended.
  bool begun() const;
  /// Bytes that are held.
  size_t held() const { return held_.size(); }
  /// Whether the client waits for "100 Continue", once.
  bool wants_continue();
  /// The request at stage `done`; the next one begins, and may be done with put("").
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

/// The head of an answer. `length` -1: of a stream, in chunks where the client knows them.
std::string answer_head(const HttpRequest& request,
                        int status,
                        std::string_view type,
                        int64_t length,
                        const Headers& headers,
                        bool keep_alive);
std::string chunk_of(std::string_view bytes);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

/// "data: ...\n\n" of a text of one line.
std::string event_of(std::string_view data);

/// %XX of a path; throws ApiError for what is none.
std::string unescaped(std::string_view path);

}  // namespace tessera::serve
