// What the tests of the server share: a plain client, and a server of tiny models.
#pragma once

#include <gtest/gtest.h>

#include <thread>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "tessera/base/testing.h"
#include "tessera/infer/infer_testing.h"
#include "tessera/serve/service.h"
#include "tessera/text/chat/chat_testing.h"

namespace tessera::serve {

/// Speaks HTTP to a port of this machine, by a library that is not the server's own code.
class Client {
 public:
  using Request = boost::beast::http::request<boost::beast::http::string_body>;
  struct Reply {
    int status = 0;
    std::map<std::string, std::string> headers = {};
    std::string body = {};
    Json json() const { return spec::parse_json(body, "reply"); }
    /// "code" of an error.
    std::string code() const { return json()["error"]["code"].get<std::string>(); }
  };

  explicit Client(int port) : port_(port), socket_(context_) {
    socket_.connect({boost::asio::ip::address_v4::loopback(), static_cast<uint16_t>(port)});
  }

  Reply get(const std::string& path, const Headers& headers = {}) {
    return ask("GET", path, "", headers);
  }
  Reply post(const std::string& path, const Json& body, const Headers& headers = {}) {
    return ask("POST", path, body.dump(), headers);
  }
  Reply ask(const std::string& method,
            const std::string& path,
            const std::string& body,
            const Headers& headers = {}) {
    Request request;
    request.method_string(method);
    request.target(path);
    request.version(11);
    request.set("Host", "127.0.0.1:" + std::to_string(port_));
    if (!body.empty() || method == "POST") request.set("Content-Type", "application/json");
    for (const auto& [name, value] : headers) request.set(name, value);
    request.body() = body;
    request.prepare_payload();
    boost::beast::http::write(socket_, request);
    return read();
  }
  Reply read() {
    boost::beast::http::response_parser<boost::beast::http::string_body> parser;
    parser.body_limit(uint64_t{1} << 30);
    boost::beast::http::read(socket_, buffer_, parser);
    Reply reply{.status = static_cast<int>(parser.get().result_int())};
    for (const auto& field : parser.get())
      reply.headers[std::string(field.name_string())] = std::string(field.value());
    reply.body = parser.get().body();
    return reply;
  }
  /// Bytes as they are.
  void send(std::string_view bytes) { boost::asio::write(socket_, boost::asio::buffer(bytes)); }
  /// What comes until the other side ends, or `most` bytes; "" for nothing at all.
  std::string receive(size_t most = size_t{1} << 20) {
    std::string all;
    std::array<char, 4096> bytes{};
    boost::system::error_code error;
    while (!error && all.size() < most) {
      const size_t n = socket_.read_some(boost::asio::buffer(bytes), error);
      all.append(bytes.data(), n);
    }
    return all;
  }
  boost::asio::ip::tcp::socket& socket() { return socket_; }
  void close() { socket_.close(); }

 private:
  int port_;
  boost::asio::io_context context_;
  boost::asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
};

/// The JSON of the events of a stream, and whether it ended with "[DONE]".
struct Events {
  explicit Events(std::string_view body) {
    for (size_t begin = 0; begin < body.size();) {
      const size_t end = body.find("\n\n", begin);
      if (end == std::string_view::npos) {
        ADD_FAILURE() << "an event without an end";
        return;
      }
      const std::string_view event = body.substr(begin, end - begin);
      begin = end + 2;
      if (event.starts_with(':')) continue;
      EXPECT_TRUE(event.starts_with("data: ")) << event;
      EXPECT_FALSE(done) << "an event behind the last";
      if (event == "data: [DONE]")
        done = true;
      else
        all.push_back(spec::parse_json(event.substr(6), "event"));
    }
  }
  /// The text of a choice.
  std::string text(int64_t index = 0) const {
    std::string out;
    for (const Json& event : all)
      for (const Json& choice : event.value("choices", Json::array())) {
        if (choice["index"] != index) continue;
        if (choice.contains("text")) out += choice["text"].get<std::string>();
        if (choice.contains("delta")) out += choice["delta"].value("content", "");
      }
    return out;
  }
  std::string finish(int64_t index = 0) const {
    std::string out;
    for (const Json& event : all)
      for (const Json& choice : event.value("choices", Json::array()))
        if (choice["index"] == index && !choice["finish_reason"].is_null())
          out += choice["finish_reason"].get<std::string>();
    return out;
  }
  std::vector<Json> all;
  bool done = false;
};

inline constexpr const char* kTemplate =
    "{% for m in messages %}<|start|>{{ m.role }}_{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant_{% endif %}";

/// A model of this kind, of infer_testing.h, with the tokens of text/chat/chat_testing.h.
inline infer::LoadedModel tiny_loaded(const std::string& kind) {
  const text::Tokenizer tokenizer = text::chat_tokenizer();
  std::string layers = infer::tiny_layers()[0].second;
  for (const auto& [name, of] : infer::tiny_layers())
    if (kind == name) layers = of;
  return {infer::tiny_model(layers, 7, tokenizer.vocab_size()), tokenizer, {}, {}};
}

inline ServiceOptions options_of(std::vector<std::string> kinds) {
  ServiceOptions options;
  options.server.port = 0;
  for (const std::string& kind : kinds) options.entries.push_back({.id = kind, .path = kind});
  options.models.load = [](const ModelEntry& entry) { return tiny_loaded(entry.path); };
  options.models.chat_template = kTemplate;
  return options;
}

/// A server that runs as long as the object lives.
class Running {
 public:
  explicit Running(const ServiceOptions& options)
      : service_(options), thread_([this] { service_.run(stop_); }) {}
  ~Running() {
    stop();
    if (thread_.joinable()) thread_.join();
  }
  void stop() { stop_.request(); }
  void wait() { thread_.join(); }
  int port() const { return service_.port(); }
  Client client() const { return Client(port()); }
  Metrics& metrics() { return service_.metrics(); }
  /// Whether the condition came to hold within a time that only a failure needs.
  template <class Condition>
  bool comes(const Condition& condition) {
    for (int i = 0; i < 10000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  Service service_;
  CancelToken stop_;
  std::thread thread_;
};

inline Json user(const std::string& text) {
  return Json::array({{{"role", "user"}, {"content", text}}});
}

}  // namespace tessera::serve
