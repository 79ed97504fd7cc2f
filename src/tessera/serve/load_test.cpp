// The server with many clients, with bad ones, and at its end.
#include <future>
#include <list>

#include <sys/stat.h>

#include "tessera/base/allocator.h"
#include "tessera/base/heap.h"
#include "tessera/base/resident.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/ops/block_cache.h"
#include "tessera/serve/serve_testing.h"

namespace tessera::serve::load_test {
namespace {

/// 64 requests of every kind that the routes know, each with a seed.
std::vector<std::pair<std::string, Json>> mixed_requests(const std::vector<std::string>& models) {
  std::vector<std::pair<std::string, Json>> out;
  for (size_t i = 0; i < 64; ++i) {
    std::string text;
    for (size_t c = 0; c < 3 + 7 * (i % 9); ++c)
      text += "abcdefghij_klmnopqrstuvw"[(c * (i + 3) + i / 4) % 24];
    Json body = {{"model", models[i % models.size()]}, {"seed", 100 + i}};
    const bool chat = i % 3 == 0;
    if (chat)
      body["messages"] = user(text);
    else
      body["prompt"] = text;
    body["max_tokens"] = 1 + (i * 7) % 40;
    if (i % 4 == 1) body["temperature"] = 0;
    if (i % 4 == 2) body["top_p"] = 0.9;
    if (i % 4 == 3) body["top_k"] = 5;
    if (i % 5 == 0) body["presence_penalty"] = 0.7;
    if (i % 7 == 0) body["n"] = 3;
    if (i % 7 == 3) body["stop"] = {"a", "qq"};
    if (i % 7 == 5) body["logit_bias"] = {{"3", 2}, {"4", -100}};
    if (i % 6 == 4 && !chat) body["logprobs"] = 2;
    if (i % 6 == 3 && chat) {
      body["logprobs"] = true;
      body["top_logprobs"] = 1;
    }
    if (i % 16 == 13 && !chat) body["echo"] = true;
    if (i % 8 == 5) body["ignore_eos"] = true;
    out.emplace_back(chat ? "/v1/chat/completions" : "/v1/completions", body);
  }
  return out;
}

/// What of an answer must not change: the choices.
Json choices_of(const Client::Reply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  return reply.json()["choices"];
}

TEST(ServiceLoad, AnAnswerIsTheSameAloneAndUnderLoad) {
  const std::vector<std::string> models = {"attention", "window", "mamba2", "rwkv7", "hybrid"};
  const auto requests = mixed_requests(models);
  std::vector<Json> alone;
  {
    ServiceOptions options = options_of(models);
    options.models.cache_bytes = 0;
    options.engine.parallel = 1;
    Running server(options);
    for (const auto& [path, body] : requests)
      alone.push_back(choices_of(server.client().post(path, body)));
  }
  ServiceOptions options = options_of(models);
  options.engine.parallel = 24;
  options.engine.step_ms = 1;
  Running server(options);
  // some come as streams, some clients leave half way, and all ask twice
  std::vector<std::thread> clients;
  std::vector<std::vector<Json>> got(requests.size());
  std::vector<std::string> streamed(requests.size());
  for (size_t i = 0; i < requests.size(); ++i)
    clients.emplace_back([&, i] {
      Client client = server.client();
      const auto& [path, body] = requests[i];
      got[i].push_back(choices_of(client.post(path, body)));
      Json stream = body;
      stream["stream"] = true;
      if (i % 5 == 2) {
        Client leaver = server.client();
        Client::Request request;
        stream["max_tokens"] = 100'000;
        stream["ignore_eos"] = true;
        const std::string text = stream.dump();
        leaver.send(
            fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                        "application/json\r\nContent-Length: {}\r\n\r\n{}",
                        path, text.size(), text));
        leaver.receive(300);
        leaver.close();
      } else {
        const Events events(client.post(path, stream).body);
        EXPECT_TRUE(events.done);
        streamed[i] = events.text();
      }
      got[i].push_back(choices_of(client.post(path, body)));
    });
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(requests[i].second.dump());
    for (const Json& again : got[i]) EXPECT_EQ(again, alone[i]);
    if (i % 5 == 2) continue;
    const Json& first = alone[i][0];
    EXPECT_EQ(streamed[i], first.contains("text") ? first["text"] : first["message"]["content"]);
  }
  EXPECT_TRUE(server.comes([&] {
    return server.client().get("/metrics").body.find("\ntessera_requests_running 0\n") !=
           std::string::npos;
  }));
  EXPECT_GT(server.metrics().value("cached_prompt_tokens_total"), 0);
}

/// A request that does not end by itself.
Json endless() {
  return {{"prompt", "abc"}, {"max_tokens", 10'000'000}, {"ignore_eos", true}, {"stream", true}};
}
void send_request(Client& client, const std::string& path, const Json& body) {
  const std::string text = body.dump();
  client.send(
      fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  "Content-Length: {}\r\n\r\n{}",
                  path, text.size(), text));
}
bool says(Running& server, const std::string& line) {
  return server.client().get("/metrics").body.find("\n" + line + "\n") != std::string::npos;
}

TEST(ServiceLoad, WhoLeavesIsNotWorkedFor) {
  Running server(options_of({"mamba2"}));
  for (const bool stream : {true, false}) {
    Client client = server.client();
    Json body = endless();
    body["stream"] = stream;
    send_request(client, "/v1/completions", body);
    EXPECT_TRUE(server.comes([&] { return says(server, "tessera_requests_running 1"); }));
    client.close();
    EXPECT_TRUE(server.comes([&] { return says(server, "tessera_requests_running 0"); }));
  }
  EXPECT_TRUE(says(server, "tessera_generations_total{finish=\"cancelled\"} 2"));
}

TEST(ServiceLoad, DeadlinesHold) {
  Running server(options_of({"mamba2"}));
  Json body = endless();
  body["timeout_ms"] = 50;
  Client client = server.client();
  const std::string stream = client.post("/v1/completions", body).body;
  EXPECT_NE(stream.find("\"deadline_exceeded\""), std::string::npos);
  EXPECT_EQ(stream.find("[DONE]"), std::string::npos);
  body["stream"] = false;
  const Client::Reply whole = client.post("/v1/completions", body);
  EXPECT_EQ(whole.status, 504);
  EXPECT_EQ(whole.code(), "deadline_exceeded");
  EXPECT_EQ(client.get("/health").status, 200);
}

TEST(ServiceLoad, QueuesAreBounded) {
  ServiceOptions options = options_of({"mamba2"});
  options.engine.parallel = 1;
  options.server.limits.waiting_requests = 2;
  options.engine.limits = options.server.limits;
  Running server(options);
  std::list<Client> clients;  // which stay where they are
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(server.port());
    send_request(clients.back(), "/v1/completions", endless());
    EXPECT_TRUE(server.comes([&] {
      return says(server, "tessera_requests_running 1") &&
             says(server, fmt::format("tessera_requests_waiting {}", i));
    }));
  }
  const Client::Reply full = server.client().post("/v1/completions", {{"prompt", "x"}});
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.code(), "queue_full");
  EXPECT_GE(std::stoi(full.headers.at("Retry-After")), 1);
  // the first of them leaves, the next one's turn comes
  clients.front().close();
  EXPECT_TRUE(server.comes([&] { return says(server, "tessera_requests_waiting 1"); }));
  for (Client& client : clients) client.close();
  EXPECT_TRUE(server.comes([&] { return says(server, "tessera_requests_running 0"); }));
  EXPECT_EQ(server.client().post("/v1/completions", {{"prompt", "x"}}).status, 200);
}

TEST(ServiceLoad, StatesFitTheirMemory) {
  ServiceOptions options = options_of({"attention"});
  options.engine.state_bytes = 64 << 10;
  Running server(options);
  Client client = server.client();
  const Client::Reply large =
      client.post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 100'000}});
  EXPECT_EQ(large.status, 400);
  EXPECT_EQ(large.code(), "state_memory_exceeded");
  // several that fit by themselves alone take turns
  std::vector<std::thread> clients;
  std::atomic<int> answered{0};
  for (int i = 0; i < 6; ++i)
    clients.emplace_back([&] {
      const auto reply = server.client().post(
          "/v1/completions", {{"prompt", "x"}, {"max_tokens", 200}, {"ignore_eos", true}});
      answered += reply.status == 200 ? 1 : 0;
    });
  for (std::thread& one : clients) one.join();
  EXPECT_EQ(answered, 6);
}

TEST(ServiceLoad, AnEndLetsAnswersEnd) {
  ServiceOptions options = options_of({"mamba2"});
  options.server.limits.grace = std::chrono::minutes(10);  // reached by a failure only
  Running server(options);
  Client idle = server.client();
  EXPECT_EQ(idle.get("/health").status, 200);
  std::list<Client> clients;  // which stay where they are
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back(server.port());
    Json body = endless();
    body["max_tokens"] = 3000;
    send_request(clients.back(), "/v1/completions", body);
  }
  EXPECT_TRUE(server.comes([&] { return says(server, "tessera_requests_running 8"); }));
  server.stop();
  for (Client& client : clients) {
    const Events events(client.read().body);
    EXPECT_TRUE(events.done);
    EXPECT_EQ(events.finish(), "length");
  }
  server.wait();
  EXPECT_EQ(idle.receive(), "");
}

TEST(ServiceLoad, AfterTheTimeOfGraceAnswersAreCut) {
  ServiceOptions options = options_of({"mamba2"});
  options.server.limits.grace = std::chrono::milliseconds(100);
  Running server(options);
  Client client = server.client();
  send_request(client, "/v1/completions", endless());
  EXPECT_TRUE(server.comes([&] { return says(server, "tessera_requests_running 1"); }));
  // it reads: what is not read cannot be told how it ended
  auto read = std::async(std::launch::async, [&] { return client.receive(size_t{64} << 20); });
  server.stop();
  server.wait();
  const std::string all = read.get();
  EXPECT_NE(all.find("server_shutting_down"), std::string::npos);
  EXPECT_EQ(all.find("[DONE]"), std::string::npos);
}

// one that takes no byte of its answer costs the others nothing, and little memory
TEST(ServiceLoad, WhoDoesNotReadIsGivenUp) {
  ServiceOptions options = options_of({"mamba2"});
  options.server.limits.write_time = std::chrono::milliseconds(400);
  Running server(options);
  Client slow = server.client();
  boost::system::error_code ignored;
  slow.socket().set_option(boost::asio::socket_base::receive_buffer_size(4096), ignored);
  send_request(slow, "/v1/completions", endless());
  EXPECT_TRUE(server.comes([&] { return says(server, "tessera_requests_running 1"); }));
  EXPECT_EQ(server.client().post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 30}}).status,
            200);
  EXPECT_TRUE(server.comes([&] { return says(server, "tessera_requests_running 0"); }));
}

// a stream that is not read rests in bounded memory, gives its place to others, and is whole in the
// end
TEST(ServiceLoad, WhoDoesNotReadRestsAndMissesNothing) {
  ServiceOptions options = options_of({"mamba2"});
  options.engine.parallel = 1;
  options.server.limits.send_buffer = 16 << 10;
  options.server.limits.merge_bytes = 8 << 10;
  options.server.limits.rest_bytes = 32 << 10;
  Running server(options);
  Json body = {
      {"prompt", "abc"}, {"max_tokens", 1500}, {"ignore_eos", true}, {"logprobs", 3}, {"seed", 9}};
  const Json alone = server.client().post("/v1/completions", body).json()["choices"][0];
  body["stream"] = true;
  Client slow = server.client();
  boost::system::error_code ignored;
  slow.socket().set_option(boost::asio::socket_base::receive_buffer_size(4096), ignored);
  send_request(slow, "/v1/completions", body);
  EXPECT_TRUE(server.comes([&] { return says(server, "tessera_requests_resting 1"); }));
  EXPECT_EQ(server.client().post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 30}}).status,
            200);
  EXPECT_TRUE(says(server, "tessera_requests_resting 1"));
  const Events events(slow.read().body);
  EXPECT_TRUE(events.done);
  EXPECT_EQ(events.text(), alone["text"]);
  std::vector<double> got;
  for (const Json& event : events.all)
    for (const Json& choice : event["choices"])
      if (choice["logprobs"].is_object())
        for (const Json& log_p : choice["logprobs"]["token_logprobs"]) got.push_back(log_p);
  EXPECT_EQ(Json(got), alone["logprobs"]["token_logprobs"]);
}

// clients that leave at every moment of a request leave nothing behind
TEST(ServiceLoad, AStormOfLeavingClients) {
  Running server(options_of({"mamba2"}));
  Json body = endless();
  const std::string text = body.dump();
  const std::string request = fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
      "application/json\r\nContent-Length: {}\r\n\r\n{}",
      text.size(), text);
  std::vector<std::thread> clients;
  for (size_t c = 0; c < 8; ++c)
    clients.emplace_back([&, c] {
      for (size_t i = 0; i < 25; ++i) {
        Client client = server.client();
        client.send(i % 3 == 0 ? request.substr(0, 1 + (i * 37 + c * 11) % request.size())
                               : request);
        if (i % 3 == 2) client.receive(1 + i * 40);
        if (i % 2 == 1) {  // with a reset in place of an end
          boost::system::error_code ignored;
          client.socket().set_option(boost::asio::socket_base::linger(true, 0), ignored);
        }
        client.close();
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(server.comes([&] {
    return says(server, "tessera_requests_running 0") &&
           says(server, "tessera_requests_waiting 0") && says(server, "tessera_connections 1") &&
           says(server, "tessera_state_reserved_bytes 0");
  }));
  EXPECT_EQ(server.client().post("/v1/completions", {{"prompt", "x"}}).status, 200);
}

TEST(ServiceLoad, SlowHeadsAndBodiesAreCut) {
  ServiceOptions options = options_of({"mamba2"});
  options.server.limits.head_time = std::chrono::milliseconds(150);
  options.server.limits.body_time = std::chrono::milliseconds(150);
  options.server.limits.idle_time = std::chrono::milliseconds(150);
  Running server(options);
  Client head = server.client(), body = server.client(), silent = server.client(),
         idle = server.client();
  head.send("GET /health HTTP/1.1\r\nHo");
  body.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
  EXPECT_EQ(idle.get("/health").status, 200);
  EXPECT_TRUE(head.receive().starts_with("HTTP/1.1 408 "));
  EXPECT_TRUE(body.receive().starts_with("HTTP/1.1 408 "));
  EXPECT_EQ(silent.receive(), "");
  EXPECT_EQ(idle.receive(), "");
}

// every parameter of every route, with values of all kinds: an answer, or an error of the client's
TEST(ServiceLoad, NoValueIsTheServersFault) {
  ServiceOptions options = options_of({"attention"});
  options.server.limits.deadline = std::chrono::milliseconds(150);
  options.models.pooling = "mean";
  options.models.context = 64;
  Running server(options);
  Client client = server.client();
  const Json api = client.get("/openapi.json").json();
  const std::vector<Json> values = {-1,
                                    0,
                                    int64_t{1} << 31,
                                    uint64_t{1} << 63,
                                    1e308,
                                    0.5,
                                    nullptr,
                                    "",
                                    std::string(5000, 'a'),
                                    Json::array(),
                                    Json::object(),
                                    true,
                                    {{"a", 1}},
                                    Json::array({"a"}),
                                    Json::array({Json::array({1})})};
  const Json usual = {{"prompt", "a"},       {"messages", user("a")}, {"input", "a"},
                      {"query", "a"},        {"documents", {"a"}},    {"tokens", {1}},
                      {"input_prefix", "a"}, {"max_tokens", 1},       {"content", "a"}};
  int64_t tried = 0;
  for (const auto& [path, methods] : api["paths"].items()) {
    if (!methods.contains("post") || !methods["post"].contains("requestBody")) continue;
    const Json& properties =
        methods["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"];
    Json base = Json::object();
    for (const auto& [name, value] : usual.items())
      if (properties.contains(name) && !(path == "/tokenize" && name != "content"))
        base[name] = value;
    for (const auto& [name, schema] : properties.items())
      for (const Json& value : values) {
        Json body = base;
        body[name] = value;
        const Client::Reply reply = client.post(path, body);
        ++tried;
        EXPECT_TRUE(reply.status < 500 || reply.status == 504)
            << path << " " << body.dump().substr(0, 300) << reply.body;
      }
  }
  EXPECT_GT(tried, 2000);
  EXPECT_TRUE(server.comes([&] { return says(server, "tessera_requests_running 0"); }));
}

/// All places of a JSON value.
void places_of(const Json& value,
               const Json::json_pointer& at,
               std::vector<Json::json_pointer>& out) {
  out.push_back(at);
  if (value.is_object())
    for (const auto& [key, one] : value.items()) places_of(one, at / key, out);
  if (value.is_array())
    for (size_t i = 0; i < value.size(); ++i) places_of(value[i], at / i, out);
}

// nor deep within a chat, whatever stands there
TEST(ServiceLoad, NoNestedValueIsTheServersFault) {
  ServiceOptions options = options_of({"attention"});
  options.server.limits.deadline = std::chrono::milliseconds(300);
  options.models.context = 400;
  options.models.chat_template =
      "{% for t in tools or [] %}{{ t.function.name }}{{ t | tojson }}{% endfor %}"
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
      "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
      "{# <tool_call></tool_call><arg_key></arg_key><arg_value> #}";
  Running server(options);
  Client client = server.client();
  const auto body_with = [](const char* more) {
    Json body = spec::parse_json(R"({"max_tokens": 1, "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": null, "tool_calls": [
          {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "1"}],
      "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"p": {"type": "string"}}, "required": ["p"]}}}]})",
                                 "body");
    body.update(spec::parse_json(more, "more"));
    return body;
  };
  const std::vector<Json> values = {
      nullptr,       5, -1.5, true, "", "x", Json::array(), Json::object(), Json::array({1}),
      Json{{"a", 1}}};
  int64_t tried = 0;
  for (const char* more :
       {R"({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto",
             "tools": [{"type": "function", "function": {"name": "f"}}]}}})",
        R"({"tool_choice": {"type": "function", "function": {"name": "f"}},
            "logit_bias": {"3": 1}, "stop": ["a"]})",
        R"({"stream": true, "stream_options": {"include_usage": true}, "tools": null,
            "response_format": {"type": "json_schema", "json_schema": {"name": "n",
              "schema": {"type": "object", "properties": {"q": {"enum": ["b"]}}}}}})",
        R"({"tools": null, "prediction": {"type": "content", "content": [{"type": "text",
            "text": "b"}]}, "chat_template_kwargs": {"k": [1]}, "reasoning": {"effort": "low"}})",
        R"({"tools": null, "structured_outputs": {"choice": ["b"]}, "samplers": ["top_k"],
            "dry_sequence_breakers": ["x"], "bad_words": ["y"]})"}) {
    const Json whole = body_with(more);
    std::vector<Json::json_pointer> places;
    places_of(whole, Json::json_pointer(), places);
    for (const auto& place : places)
      for (const Json& value : values) {
        Json body = whole;
        body[place] = value;
        const Client::Reply reply = client.post("/v1/chat/completions", body);
        ++tried;
        EXPECT_TRUE(reply.status < 500 || reply.status == 504)
            << place.to_string() << " " << value.dump() << " " << reply.body;
      }
  }
  EXPECT_GT(tried, 1000);
}

TEST(ServiceLoad, RequestsBehindEachOtherAreAnsweredInOrder) {
  Running server(options_of({"attention"}));
  Client client = server.client();
  const std::string body = R"({"content": "abc"})";
  const std::string post = fmt::format(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n\r\n{}",
      body.size(), body);
  client.send(post + "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + post +
              "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.read().json()["count"], 3);
  EXPECT_EQ(client.read().json()["status"], "ok");
  EXPECT_EQ(client.read().json()["count"], 3);
  EXPECT_EQ(client.read().json()["object"], "list");
  EXPECT_EQ(client.receive(), "");
}

TEST(ServiceLoad, Keys) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("keys", "# keys\nfirst\nsecond\n");
  ServiceOptions options = options_of({"attention"});
  options.access.key_file = file;
  ::chmod(file.c_str(), 0644);
  test::expect_error(ErrorKind::file, "others may read these keys", [&] { Service s(options); });
  ::chmod(file.c_str(), 0600);
  Running server(options);
  Client client = server.client();
  EXPECT_EQ(client.get("/health").status, 200);
  for (const char* path : {"/v1/models", "/metrics", "/openapi.json", "/props"}) {
    EXPECT_EQ(client.get(path).status, 401) << path;
    EXPECT_EQ(client.get(path, {{"Authorization", "Bearer third"}}).code(), "invalid_api_key");
    EXPECT_EQ(client.get(path, {{"Authorization", "Bearer second"}}).status, 200) << path;
    EXPECT_EQ(client.get(path, {{"X-Api-Key", "first"}}).status, 200) << path;
  }
  EXPECT_EQ(client.post("/v1/completions", {{"prompt", "x"}}).status, 401);
}

TEST(ServiceLoad, PagesFromElsewhere) {
  ServiceOptions options = options_of({"attention"});
  options.access.cors_origins = {"https://example.org"};
  Running server(options);
  Client client = server.client();
  const auto reply = client.ask("OPTIONS", "/v1/models", "", {{"Origin", "https://example.org"}});
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.headers.at("Access-Control-Allow-Origin"), "https://example.org");
  EXPECT_FALSE(reply.headers.contains("Access-Control-Allow-Credentials"));
  EXPECT_EQ(client.get("/v1/models", {{"Origin", "https://other.org"}}).status, 403);
}

// a key is what a page with a name of its own does not have
TEST(ServiceLoad, NamesOfTheServer) {
  const auto status = [](Running& server, const std::string& host) {
    return server.client()
        .get("/v1/models", {{"Host", host}, {"Authorization", "Bearer secret"}})
        .status;
  };
  const std::vector<std::string> numeric = {"192.168.0.7", "192.168.0.7:8080", "[fd00::7]:8080",
                                            "0.0.0.0:80", "[::1]:1"},
                                 foreign = {"evil.example", "127.0.0.1.evil.example", "1.2.3",
                                            "example.org.", "192.168.0.7.nip.io"};
  ServiceOptions options = options_of({"attention"});
  options.access.hosts = {"0.0.0.0", "My.Example.org"};
  {
    Running open(options);
    EXPECT_EQ(status(open, "localhost:8080"), 200);
    EXPECT_EQ(status(open, "LOCALHOST."), 200);
    EXPECT_EQ(status(open, "my.example.ORG:1"), 200);
    EXPECT_EQ(status(open, "192.168.0.7"), 403);
    for (const std::string& host : foreign) EXPECT_EQ(status(open, host), 403) << host;
  }
  options.access.key = "secret";
  Running keyed(options);
  for (const std::string& host : numeric) EXPECT_EQ(status(keyed, host), 200) << host;
  for (const std::string& name : machine_names())
    EXPECT_EQ(status(keyed, name + ":8080"), 200) << name;
  for (const std::string& host : foreign) EXPECT_EQ(status(keyed, host), 403) << host;
  // the remedy is named, with the name
  const Client::Reply reply =
      keyed.client().get("/v1/models", {{"Host", "evil.example"}, {"X-Api-Key", "secret"}});
  EXPECT_NE(reply.body.find("--allow-host \\\"evil.example\\\""), std::string::npos) << reply.body;
}

TEST(ServiceLoad, ModelsComeAndGoWithinTheirMemory) {
  const std::string folder = TESSERA_SOURCE_DIR "/tests/golden/families/";
  ServiceOptions options;
  options.server.port = 0;
  options.entries = {{.id = "one", .path = folder + "llama/gguf/base.gguf"},
                     {.id = "two", .path = folder + "llama/gguf/base.gguf"},
                     {.id = "three", .path = folder + "llama/gguf/base.gguf"}};
  const int64_t bytes = [&] {
    int64_t n = 0;
    for (const auto& tensor : convert::load_checkpoint(options.entries[0].path).tensors)
      n += static_cast<int64_t>(tensor.data.size());
    return n;
  }();
  options.model_bytes = 2 * bytes;
  Running server(options);
  Client client = server.client();
  const auto ask = [&](const char* model) {
    const auto reply = client.post(
        "/v1/completions", {{"model", model}, {"prompt", "!"}, {"max_tokens", 4}, {"seed", 1}});
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["choices"];
  };
  const Json first = ask("one");
  EXPECT_EQ(server.metrics().value("model_loads_total"), 1);
  EXPECT_EQ(ask("two"), first);
  EXPECT_EQ(server.metrics().value("model_unloads_total"), 0);
  EXPECT_EQ(ask("three"), first);
  EXPECT_EQ(server.metrics().value("model_unloads_total"), 1);
  EXPECT_FALSE(client.get("/v1/models/one").json()["loaded"].get<bool>());
  EXPECT_EQ(ask("one"), first);
  // many at once for all of them
  std::vector<std::thread> clients;
  for (int i = 0; i < 12; ++i)
    clients.emplace_back([&, i] {
      const char* model = i % 3 == 0 ? "one" : i % 3 == 1 ? "two" : "three";
      EXPECT_EQ(server.client()
                    .post("/v1/completions",
                          {{"model", model}, {"prompt", "!"}, {"max_tokens", 4}, {"seed", 1}})
                    .json()["choices"],
                first);
    });
  for (std::thread& one : clients) one.join();
  options.model_bytes = bytes - 1;
  test::expect_error(ErrorKind::usage, "--model-memory", [&] { Service s(options); });
}

/// Two models of which the memory holds one.
ServiceOptions one_of_two() {
  const std::string file = TESSERA_SOURCE_DIR "/tests/golden/families/llama/gguf/base.gguf";
  ServiceOptions options;
  options.server.port = 0;
  options.entries = {{.id = "one", .path = file}, {.id = "two", .path = file}};
  options.models.context = 100'000'000;
  for (const auto& tensor : convert::load_checkpoint(file).tensors)
    options.model_bytes += static_cast<int64_t>(tensor.data.size());
  return options;
}

Json of_model(const char* model, int64_t tokens) {
  return {
      {"model", model}, {"prompt", "!"}, {"max_tokens", tokens}, {"seed", 1}, {"ignore_eos", true}};
}

/// A stream that occupies its model until it is closed.
std::unique_ptr<Client> occupy(Running& server, const char* model) {
  auto client = std::make_unique<Client>(server.port());
  Json body = of_model(model, 10'000'000);
  body["stream"] = true;
  send_request(*client, "/v1/completions", body);
  EXPECT_TRUE(server.comes([&] { return says(server, "tessera_requests_running 1"); }));
  return client;
}

TEST(ServiceLoad, WhoWaitsForAModelHasADeadline) {
  Running server(one_of_two());
  const auto busy = occupy(server, "one");
  Client client = server.client();
  Json body = of_model("two", 1);
  body["timeout_ms"] = 300;
  const auto begin = std::chrono::steady_clock::now();
  const Client::Reply reply = client.post("/v1/completions", body);
  EXPECT_EQ(reply.status, 504) << reply.body;
  EXPECT_EQ(reply.code(), "deadline_exceeded");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(server.metrics().value("model_loads_total"), 1);
}

TEST(ServiceLoad, NoRoomIsMadeForWhoHasLeft) {
  Running server(one_of_two());
  auto busy = occupy(server, "one");
  {
    Client leaves = server.client();
    send_request(leaves, "/v1/completions", of_model("two", 1));
    EXPECT_TRUE(server.comes([&] { return server.metrics().value("connections") >= 0; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  // until it is seen to be gone
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  busy.reset();
  EXPECT_EQ(server.client().post("/v1/completions", of_model("one", 1)).status, 200);
  EXPECT_EQ(server.metrics().value("model_loads_total"), 1);
  EXPECT_EQ(server.client().post("/v1/completions", of_model("two", 1)).status, 200);
}

// requests for a model that never leave it unused do not keep another out for ever
TEST(ServiceLoad, AModelComesInBetweenRequestsForAnother) {
  Running server(one_of_two());
  std::atomic<bool> done{false};
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i)
    clients.emplace_back([&] {
      while (!done)
        answered += server.client().post("/v1/completions", of_model("one", 200)).status == 200;
    });
  EXPECT_TRUE(server.comes([&] { return answered > 3; }));
  Json body = of_model("two", 1);
  body["timeout_ms"] = 60'000;
  EXPECT_EQ(server.client().post("/v1/completions", body).status, 200);
  const int before = answered;
  EXPECT_TRUE(server.comes([&] { return answered > before + 3; }));  // and the first comes back
  done = true;
  for (std::thread& client : clients) client.join();
}

TEST(ServiceLoad, AnEndIsToldToWhoWaitsForAModel) {
  ServiceOptions options = one_of_two();
  options.server.limits.grace = std::chrono::milliseconds(100);
  Running server(options);
  const auto busy = occupy(server, "one");
  Client waits = server.client();
  send_request(waits, "/v1/completions", of_model("two", 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  server.stop();
  const Client::Reply reply = waits.read();
  EXPECT_EQ(reply.status, 503) << reply.body;
  EXPECT_EQ(reply.code(), "server_shutting_down");
  server.wait();
}

// before any thread has a heap of its own, as `tessera serve` does
[[maybe_unused]] const bool kOneHeap = [] {
  limit_heaps(1);
  return true;
}();

/// A number of /metrics, summed over its labels.
double metric(Running& server, const std::string& name) {
  const std::string text = server.client().get("/metrics").body;
  double sum = 0;
  for (size_t at = text.find("\n" + name); at != std::string::npos;
       at = text.find("\n" + name, at + 1)) {
    const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    if (line[name.size()] == ' ' || line[name.size()] == '{')
      sum += std::stod(line.substr(line.rfind(' ')));
  }
  return sum;
}

/// Bad clients at once: large bodies that are no requests, streams that are left half way, and
/// answers that nobody reads.
void bad_clients(Running& server) {
  std::vector<std::thread> clients;
  for (int i = 0; i < 24; ++i)
    clients.emplace_back([&server, i] {
      Client client = server.client();
      if (i % 3 == 0) {
        // lists of lists: many small pieces of memory, and then "no request"
        std::string body = "{\"prompt\": [[";
        for (int n = 0; n < 200'000; ++n) body += "1,";
        client.ask("POST", "/v1/completions", body + "1]], \"nonsense\": 1}");
        return;
      }
      Json body = endless();
      body["prompt"] = std::string(400, static_cast<char>('a' + i % 24));
      send_request(client, "/v1/completions", body);
      if (i % 3 == 1) client.receive(20'000);
      if (i % 3 == 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    });
  for (std::thread& client : clients) client.join();
}

// what requests took is given back when nothing is left to do, and /metrics tells what is held
TEST(ServiceLoad, MemoryComesBackAfterBadClients) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has a heap of its own";
#endif
  if (resident_parts().all() == 0) GTEST_SKIP() << "no /proc/self/smaps";
  keep_freed_memory();  // as `tessera serve` does
  ops::use_block_cache();
  ServiceOptions options = options_of({"attention", "mamba2"});
  options.models.cache_bytes = 0;
  options.server.limits.trim_time = std::chrono::milliseconds(50);
  Running server(options);
  std::vector<int64_t> held;
  for (int round = 0; round < 6; ++round) {
    bad_clients(server);
    EXPECT_TRUE(server.comes([&] { return metric(server, "tessera_state_reserved_bytes") == 0; }));
    // the /metrics above are requests too: until the rest after the last of them
    const double trims = server.metrics().value("memory_trims_total");
    EXPECT_TRUE(server.comes([&] { return server.metrics().value("memory_trims_total") > trims; }));
    held.push_back(resident_parts().anonymous);
    EXPECT_NEAR(metric(server, "tessera_memory_bytes"),
                metric(server, "process_resident_memory_bytes"),
                0.1 * metric(server, "process_resident_memory_bytes"));
    EXPECT_EQ(metric(server, "tessera_state_bytes"), 0);
  }
  constexpr int64_t kMargin = int64_t{8} << 20;
  EXPECT_LE(held.back(), held[1] + kMargin) << ::testing::PrintToString(held);
}

// whatever waits, runs or is queued at the end, nothing of the server stays behind: with the
// address sanitizer a state that outlives it is a leak
TEST(ServiceLoad, NothingOutlivesTheServer) {
  std::weak_ptr<int> alive;
  {
    ServiceOptions options = one_of_two();
    options.server.limits.grace = std::chrono::milliseconds(0);
    options.workers = 1;
    const auto token = std::make_shared<int>(0);
    alive = token;
    options.log = [token](const Json&) {};
    Running server(options);
    const auto busy = occupy(server, "one");
    std::list<Client> clients;
    for (int i = 0; i < 20; ++i) {
      clients.emplace_back(server.port());
      send_request(clients.back(), i % 3 == 0 ? "/tokenize" : "/v1/completions",
                   i % 3 == 0 ? Json{{"content", std::string(100'000, 'a')}}
                              : of_model(i % 3 == 1 ? "one" : "two", 1000));
    }
  }
  EXPECT_TRUE(alive.expired());
}

}  // namespace
}  // namespace tessera::serve::load_test
