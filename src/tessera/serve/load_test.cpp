// The server with many clients, with bad ones, and at its end.
#include <future>
#include <list>

#include <sys/stat.h>

#include "tessera/infer/generate.h"
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
  options.server.limits.grace = std::chrono::milliseconds(30'000);
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
  options.server.limits.behind_bytes = 8 << 10;
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
        EXPECT_TRUE(reply.status < 500 || reply.status == 501 || reply.status == 504)
            << path << " " << body.dump().substr(0, 300) << reply.body;
      }
  }
  EXPECT_GT(tried, 2000);
  EXPECT_TRUE(server.comes([&] { return says(server, "tessera_requests_running 0"); }));
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

}  // namespace
}  // namespace tessera::serve::load_test
