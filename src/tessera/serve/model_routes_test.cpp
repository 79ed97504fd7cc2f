// Models in memory, what runs, and what is counted, over loopback.
#include <list>

#include "tessera/serve/serve_testing.h"

namespace tessera::serve::model_routes_test {
namespace {

void send_request(Client& client, const std::string& path, const Json& body) {
  const std::string text = body.dump();
  client.send(
      fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  "Content-Length: {}\r\n\r\n{}",
                  path, text.size(), text));
}

/// A request that does not end by itself.
Json endless() {
  return {{"prompt", "abc"}, {"max_tokens", 10'000'000}, {"ignore_eos", true}, {"stream", true}};
}

TEST(ModelRoutes, ModelsAreLoadedAndGivenUpOnDemand) {
  Running server(options_of({"attention", "mamba2"}));
  Client client = server.client();
  const auto is_loaded = [&](const char* model) {
    return client.get(fmt::format("/v1/models/{}", model)).json()["loaded"].get<bool>();
  };
  EXPECT_FALSE(is_loaded("mamba2"));
  EXPECT_TRUE(client.post("/models/load", {{"model", "mamba2"}}).json()["loaded"].get<bool>());
  EXPECT_TRUE(is_loaded("mamba2"));
  // not while it is used
  Client user = server.client();
  Json body = endless();
  body["model"] = "mamba2";
  send_request(user, "/v1/completions", body);
  EXPECT_TRUE(server.comes([&] {
    return client.get("/metrics").body.find("tessera_requests_running 1\n") != std::string::npos;
  }));
  const Client::Reply used = client.post("/models/unload", {{"model", "mamba2"}});
  EXPECT_EQ(used.status, 409);
  EXPECT_EQ(used.code(), "model_in_use");
  user.close();
  EXPECT_TRUE(server.comes([&] {
    return client.post("/models/unload", {{"model", "mamba2"}}).status == 200;
  }));
  EXPECT_FALSE(is_loaded("mamba2"));
  EXPECT_EQ(server.metrics().value("models_loaded"), 1);
  // it comes back when it is asked for
  EXPECT_EQ(client.post("/v1/completions", {{"model", "mamba2"}, {"prompt", "a"}}).status, 200);
  EXPECT_EQ(client.post("/models/unload", {{"model", "none"}}).code(), "model_not_found");
  EXPECT_EQ(client.post("/models/load", Json::object()).code(), "missing_parameter");
}

TEST(ModelRoutes, ModelsThatNobodyUsesGo) {
  ServiceOptions options = options_of({"attention"});
  options.models.keep_alive = std::chrono::milliseconds(20);
  Running server(options);
  Client client = server.client();
  EXPECT_TRUE(server.comes([&] { return server.metrics().value("model_unloads_total") > 0; }));
  EXPECT_EQ(client.post("/v1/completions", {{"prompt", "a"}}).status, 200);
}

TEST(ModelRoutes, WhatRunsIsShownWithoutItsWords) {
  ServiceOptions options = options_of({"attention"});
  options.engine.priorities = true;
  Running server(options);
  Client client = server.client(), user = server.client();
  Json body = endless();
  body["priority"] = 3;
  body["prompt"] = "secret_words";
  send_request(user, "/v1/completions", body);
  Json running;
  EXPECT_TRUE(server.comes([&] {
    running = client.get("/requests").json()["running"];
    return running.size() == 1 && running[0]["generated_tokens"] > 0;
  }));
  EXPECT_EQ(running[0]["model"], "attention");
  EXPECT_EQ(running[0]["client"], "127.0.0.1");
  EXPECT_EQ(running[0]["priority"], 3);
  EXPECT_EQ(running[0]["prompt_tokens"], 12);
  EXPECT_EQ(running[0]["texts_running"], 1);
  EXPECT_EQ(running.dump().find("secret"), std::string::npos);
  user.close();
  EXPECT_TRUE(server.comes([&] { return client.get("/requests").json()["running"].empty(); }));
}

TEST(ModelRoutes, PropertiesTellDefaultsAndLimits) {
  ServiceOptions options = options_of({"attention"});
  options.max_tokens = 77;
  Running server(options);
  const Json props = server.client().get("/props").json();
  const Json& defaults = props["models"][0]["default_generation_settings"];
  // where a model's makers say nothing
  EXPECT_EQ(defaults["temperature"], 0.7);
  EXPECT_EQ(defaults["min_p"], 0.05);
  EXPECT_EQ(defaults["max_tokens"], 77);
  EXPECT_EQ(props["limits"]["json_depth"], 64);
  EXPECT_EQ(props["limits"]["deadline_seconds"], 600.0);
  EXPECT_FALSE(props["retrieve"].get<bool>());
  EXPECT_FALSE(props["models"][0]["fill_in_the_middle"].get<bool>());
}

TEST(ModelRoutes, MetricsHaveOtherNamesWhereAskedFor) {
  ServiceOptions options = options_of({"attention"});
  const std::string plain = Running(options).client().get("/metrics").body;
  EXPECT_EQ(plain.find("vllm:"), std::string::npos);
  options.metrics_compat = "vllm";
  Running server(options);
  Client client = server.client();
  client.post("/v1/completions", {{"prompt", "hello"}, {"max_tokens", 3}, {"ignore_eos", true}});
  const std::string both = client.get("/metrics").body;
  for (const char* line :
       {"\ntessera_generated_tokens_total 3\n", "\nvllm:generation_tokens_total 3\n",
        "\nvllm:request_generation_tokens_count 1\n",
        "# TYPE vllm:time_to_first_token_seconds histogram"})
    EXPECT_NE(both.find(line), std::string::npos) << line << both;
  EXPECT_EQ(both.find("llamacpp:"), std::string::npos);
}

TEST(ModelRoutes, EveryMetricIsSet) {
  ServiceOptions options = options_of({"attention", "mamba2"});
  options.models.cache_bytes = 64 << 10;
  options.models.speculation = {.lookup = 2, .draft_tokens = 2};
  options.engine.parallel = 1;
  options.engine.priorities = true;
  options.engine.state_bytes = int64_t{1} << 33;
  options.server.limits.waiting_requests = 1;
  options.server.limits.trim_time = std::chrono::milliseconds(50);
  options.engine.limits = options.server.limits;
  Running server(options);
  Client client = server.client();
  // prompts that begin alike, and more of them than the cache holds
  for (int i = 0; i < 40; ++i)
    client.post("/v1/completions",
                {{"prompt", std::string(60, static_cast<char>('a' + i / 2)) + "_again"},
                 {"max_tokens", 3},
                 {"ignore_eos", true}});
  client.post("/v1/completions", {{"model", "mamba2"}, {"prompt", "a"}});
  EXPECT_TRUE(server.comes([&] {
    return client.post("/models/unload", {{"model", "mamba2"}}).status == 200;
  }));
  // one runs, one waits, one is turned away, and an urgent one takes the place
  std::list<Client> clients;
  const auto send = [&](int priority, int running, int waiting) {
    clients.emplace_back(server.port());
    Json body = endless();
    body["priority"] = priority;
    send_request(clients.back(), "/v1/completions", body);
    EXPECT_TRUE(server.comes([&] {
      const std::string text = client.get("/metrics").body;
      return text.find(fmt::format("tessera_requests_running {}\n", running)) !=
                 std::string::npos &&
             text.find(fmt::format("tessera_requests_waiting {}\n", waiting)) != std::string::npos;
    }));
  };
  send(5, 1, 0);
  send(-5, 2, 0);
  send(6, 2, 1);
  EXPECT_EQ(client.post("/v1/completions", {{"prompt", "x"}}).code(), "queue_full");
  clients.erase(std::next(clients.begin()));
  EXPECT_TRUE(server.comes([&] { return server.metrics().value("recomputed_tokens_total") > 0; }));
  for (Client& one : clients) one.close();
  EXPECT_TRUE(server.comes([&] { return server.metrics().value("requests_running") == 0; }));
  EXPECT_TRUE(server.comes([&] { return server.metrics().value("memory_trims_total") > 0; }));
  client.get("/metrics");
  EXPECT_EQ(server.metrics().untouched(), std::vector<std::string>{});
  EXPECT_GT(server.metrics().value("state_limit_bytes"), 0);
  EXPECT_GT(server.metrics().value("prefix_cache_hits_total"), 0);
}

TEST(ModelRoutes, RoutesAreCountedByTheirNames) {
  ServiceOptions options = options_of({"attention"});
  std::vector<Json> lines;
  options.log = [&](const Json& line) { lines.push_back(line); };
  {
    Running server(options);
    Client client = server.client();
    client.get("/inspect/attention");
    client.get("/v1/models/attention");
    client.get("/no/such/path");
    EXPECT_TRUE(server.comes([&] {
      return client.get("/metrics")
                 .body.find("tessera_requests_total{route=\"/inspect/{id}\",code=\"200\"} 1\n") !=
             std::string::npos;
    }));
  }
  ASSERT_GE(lines.size(), 3u);
  EXPECT_EQ(lines[0]["route"], "/inspect/{id}");
  EXPECT_EQ(lines[1]["route"], "/v1/models/{id}");
  EXPECT_EQ(lines[2]["route"], "none");
  EXPECT_EQ(lines[2]["path"], "/no/such/path");
  EXPECT_FALSE(lines[0].contains("path"));
}

}  // namespace
}  // namespace tessera::serve::model_routes_test
