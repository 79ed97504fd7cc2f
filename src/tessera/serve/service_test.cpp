// The server over loopback, with tiny models of its own and a client that shares no code with it.
#include "tessera/serve/service.h"

#include "tessera/infer/generate.h"
#include "tessera/serve/serve_testing.h"

namespace tessera::serve::service_test {
namespace {

TEST(Service, SaysWhatThereIs) {
  Running server(options_of({"attention", "mamba2"}));
  Client client = server.client();
  EXPECT_EQ(client.get("/health").body, R"({"status":"ok"})");
  const Json models = client.get("/v1/models").json();
  ASSERT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][0]["id"], "attention");
  EXPECT_EQ(models["data"][0]["capabilities"], Json::array({"chat", "completion"}));
  EXPECT_FALSE(models["data"][1]["loaded"].get<bool>());
  EXPECT_EQ(client.get("/v1/models/mamba2").json()["id"], "mamba2");
  EXPECT_EQ(client.get("/props").json()["models"][0]["spec"]["d_model"], 16);
  const Json api = client.get("/openapi.json").json();
  EXPECT_TRUE(api["paths"]["/v1/chat/completions"]["post"].contains("requestBody"));
  const Client::Reply metrics = client.get("/metrics");
  EXPECT_NE(metrics.body.find("tessera_requests_total{route=\"/health\",code=\"200\"} 1"),
            std::string::npos)
      << metrics.body;
}

TEST(Service, ACompletionIsWhatTheEngineSaysAlone) {
  Running server(options_of({"attention"}));
  const infer::LoadedModel alone = tiny_loaded("attention");
  infer::GenerateOptions options;
  options.max_new_tokens = 20;
  options.sampling = {.temperature = 0.9, .top_p = 0.95, .seed = 11};
  options.stop_ids = infer::end_ids(alone);
  options.choices = 3;
  options.chances = 2;
  const auto ids = alone.tokenizer->encode("hello_there");
  const infer::Generations want =
      infer::generate(alone.model, &*alone.tokenizer, {{ids.begin(), ids.end()}}, options);
  Client client = server.client();
  const Json body = {{"prompt", "hello_there"},
                     {"max_tokens", 20},
                     {"temperature", 0.9},
                     {"top_p", 0.95},
                     {"seed", 11},
                     {"n", 3},
                     {"logprobs", 2}};
  const Json got = client.post("/v1/completions", body).json();
  ASSERT_EQ(got["choices"].size(), 3u) << got.dump();
  EXPECT_EQ(got["object"], "text_completion");
  EXPECT_EQ(got["model"], "attention");
  EXPECT_EQ(got["seed"], 11);
  EXPECT_EQ(got["usage"]["prompt_tokens"], ids.size());
  int64_t tokens = 0;
  for (size_t i = 0; i < 3; ++i) {
    const Json& choice = got["choices"][i];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["text"], want.rows[i].text);
    EXPECT_EQ(choice["finish_reason"], want.rows[i].finish_reason);
    ASSERT_EQ(choice["logprobs"]["token_logprobs"].size(), want.rows[i].chances.size());
    for (size_t t = 0; t < want.rows[i].chances.size(); ++t)
      EXPECT_EQ(choice["logprobs"]["token_logprobs"][t], want.rows[i].chances[t].chosen.log_p);
    tokens += infer::size_of(want.rows[i].token_ids);
  }
  EXPECT_NE(want.rows[0].text, want.rows[1].text);
  EXPECT_EQ(got["usage"]["completion_tokens"], tokens);
  // the same, streamed
  Json streamed = body;
  streamed["stream"] = true;
  streamed["stream_options"] = {{"include_usage", true}};
  const Client::Reply reply = client.post("/v1/completions", streamed);
  EXPECT_EQ(reply.headers.at("Content-Type"), "text/event-stream; charset=utf-8");
  const Events events(reply.body);
  EXPECT_TRUE(events.done);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(events.text(i), want.rows[static_cast<size_t>(i)].text);
    EXPECT_EQ(events.finish(i), want.rows[static_cast<size_t>(i)].finish_reason);
  }
  EXPECT_EQ(events.all.back()["usage"]["completion_tokens"], tokens);
  EXPECT_TRUE(events.all.back()["choices"].empty());
  EXPECT_TRUE(events.all.front()["usage"].is_null());
  for (const Json& event : events.all) EXPECT_EQ(event["id"], events.all[0]["id"]);
}

TEST(Service, AChatIsReadByTheTemplate) {
  Running server(options_of({"attention"}));
  Client client = server.client();
  const Json chat = {{"messages", user("hi")}, {"max_tokens", 8}, {"temperature", 0}};
  const Json got = client.post("/v1/chat/completions", chat).json();
  ASSERT_TRUE(got.contains("choices")) << got.dump();
  EXPECT_EQ(got["object"], "chat.completion");
  EXPECT_EQ(got["choices"][0]["message"]["role"], "assistant");
  const Json read = client.post("/apply-template", {{"messages", user("hi")}}).json();
  EXPECT_EQ(read["prompt"], "<|start|>user_hi<|end|><|start|>assistant_");
  const Json said =
      client
          .post("/v1/completions",
                {{"prompt", read["tokens"]},
                 {"max_tokens", 8},
                 {"temperature", 0},
                 {"stop_token_ids", Json::array({*text::chat_tokenizer().id("<|end|>")})}})
          .json();
  EXPECT_EQ(said["choices"][0]["text"], got["choices"][0]["message"]["content"]);
  EXPECT_EQ(said["usage"]["prompt_tokens"], got["usage"]["prompt_tokens"]);
  // streamed: the role, the text, the end
  Json streamed = chat;
  streamed["stream"] = true;
  const Events events(client.post("/v1/chat/completions", streamed).body);
  EXPECT_EQ(events.all[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events.all[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events.text(), got["choices"][0]["message"]["content"]);
  EXPECT_TRUE(events.done);
  // an answer that has begun goes on
  Json begun = chat;
  begun["messages"].push_back({{"role", "assistant"}, {"content", "well"}});
  const Json more = client.post("/apply-template", {{"messages", begun["messages"]}}).json();
  EXPECT_EQ(more["prompt"], "<|start|>user_hi<|end|><|start|>assistant_well");
  EXPECT_EQ(client.post("/v1/chat/completions", begun).status, 200);
}

TEST(Service, AnswersAreOfTheFormThatIsAskedFor) {
  Running server(options_of({"attention"}));
  Client client = server.client();
  const auto said = [&](Json more) {
    Json body = {{"prompt", "hello_there"}, {"max_tokens", 40}, {"temperature", 1.5}, {"seed", 5}};
    body.update(more);
    const Client::Reply reply = client.post("/v1/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["choices"][0]["text"].get<std::string>();
  };
  // the tokenizer has letters alone, so that of JSON it can say these words
  const Json schema = {{"enum", {true, nullptr}}};
  const Json format = {{"type", "json_schema"},
                       {"json_schema", {{"name", "x"}, {"schema", schema}}}};
  const std::string text = said({{"response_format", format}});
  EXPECT_TRUE(text == "true" || text == "null") << text;
  // said again it is what it was, and so it is in another field
  EXPECT_EQ(said({{"response_format", format}}), text);
  EXPECT_EQ(said({{"json_schema", schema}}), text);
  EXPECT_EQ(said({{"structured_outputs", {{"json", schema}}}}), text);
  const std::string letters = said({{"structured_outputs", {{"regex", "[a-e]{3}"}}}});
  EXPECT_EQ(letters.size(), 3u);
  EXPECT_EQ(letters.find_first_not_of("abcde"), std::string::npos);
  const std::string choice = said({{"structured_outputs", {{"choice", {"yes", "no"}}}}});
  EXPECT_TRUE(choice == "yes" || choice == "no") << choice;
  EXPECT_EQ(said({{"grammar", "root ::= \"ab\" \"c\""}}), "abc");
  const auto refused = [&](Json more, const std::string& param) {
    more["prompt"] = "x";
    const Client::Reply reply = client.post("/v1/completions", more);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.json()["error"]["param"], param) << reply.body;
  };
  refused({{"grammar", "root ::= ("}}, "grammar");
  refused({{"json_schema", {{"type", "strin"}}}}, "json_schema");
  refused({{"response_format", {{"type", "xml"}}}}, "response_format");
  refused({{"response_format", {{"type", "json_schema"}}}}, "response_format");
  refused({{"structured_outputs", {{"choice", Json::array()}}}}, "structured_outputs");
  refused({{"structured_outputs", {{"regex", "("}}}}, "structured_outputs");
}

TEST(Service, CallsOfFunctionsAreForcedAndReadApart) {
  ServiceOptions options = options_of({"attention"});
  options.models.chat_template =
      "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}"
      "{{ m.content }}{% endfor %}{# <tool_call></tool_call><arg_key></arg_key><arg_value> #}";
  Running server(options);
  Client client = server.client();
  const auto tool = [](const char* name) {
    return Json{{"type", "function"}, {"function", {{"name", name}}}};
  };
  Json body = {{"messages", user("x")},
               {"max_tokens", 60},
               {"seed", 5},
               {"tools", {tool("look"), tool("find")}},
               {"tool_choice", tool("find")}};
  const Json choice = client.post("/v1/chat/completions", body).json()["choices"][0];
  ASSERT_TRUE(choice["message"].contains("tool_calls")) << choice.dump();
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"],
            (Json{{"name", "find"}, {"arguments", "{}"}}));
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  body["tool_choice"] = "required";
  body["parallel_tool_calls"] = false;
  const Json any = client.post("/v1/chat/completions", body).json()["choices"][0]["message"];
  ASSERT_EQ(any["tool_calls"].size(), 1u);
  const std::string name = any["tool_calls"][0]["function"]["name"];
  EXPECT_TRUE(name == "look" || name == "find") << name;
  const auto refused = [&](const char* key, const Json& value, const std::string& param) {
    Json bad = body;
    bad[key] = value;
    const Client::Reply reply = client.post("/v1/chat/completions", bad);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.json()["error"]["param"], param) << reply.body;
  };
  refused("tool_choice", tool("none_such"), "tool_choice");
  refused("response_format", {{"type", "json_object"}}, "tool_choice");
}

TEST(Service, TextsAreScored) {
  Running server(options_of({"attention"}));
  const infer::LoadedModel alone = tiny_loaded("attention");
  const auto ids = alone.tokenizer->encode("once_upon");
  infer::Engine engine(alone.model, {});
  const infer::Sequence text{
      {}, {ids.begin(), ids.end()}, infer::size_of({ids.begin(), ids.end()})};
  const auto id = engine.submit(infer::scoring(text, infer::next_tokens(text)));
  while (engine.step(1024)) {
  }
  const infer::Generation want = engine.take(id).generation;
  Client client = server.client();
  const Json got = client
                       .post("/v1/completions", {{"prompt", Json::array({"once_upon", "a_time"})},
                                                 {"max_tokens", 0},
                                                 {"echo", true},
                                                 {"logprobs", 1}})
                       .json();
  ASSERT_EQ(got["choices"].size(), 2u) << got.dump();
  const Json& choice = got["choices"][0];
  EXPECT_EQ(choice["text"], "once_upon");
  EXPECT_EQ(choice["finish_reason"], "length");
  const Json& chances = choice["logprobs"];
  ASSERT_EQ(chances["token_logprobs"].size(), ids.size());
  EXPECT_TRUE(chances["token_logprobs"][0].is_null());
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_EQ(chances["token_logprobs"][i], want.log_p[i - 1]);
    EXPECT_EQ(chances["top_logprobs"][i].size(), 1u);
    EXPECT_EQ(chances["text_offset"][i], i);
  }
  // and what goes on from there is a part of it
  const Json more = client
                        .post("/v1/completions", {{"prompt", "once_upon"},
                                                  {"max_tokens", 3},
                                                  {"echo", true},
                                                  {"logprobs", 0},
                                                  {"temperature", 0},
                                                  {"ignore_eos", true}})
                        .json();
  EXPECT_EQ(more["choices"][0]["logprobs"]["tokens"].size(), ids.size() + 3);
  EXPECT_EQ(more["choices"][0]["text"].get<std::string>().substr(0, 9), "once_upon");
}

TEST(Service, TokensAndBack) {
  Running server(options_of({"attention"}));
  Client client = server.client();
  const Json tokens =
      client.post("/tokenize", {{"content", "hello"}, {"with_pieces", true}}).json();
  EXPECT_EQ(tokens["count"], 5);
  EXPECT_EQ(tokens["pieces"][4]["piece"], "o");
  EXPECT_EQ(client.post("/detokenize", {{"tokens", tokens["tokens"]}}).json()["content"], "hello");
  EXPECT_EQ(client.post("/tokenize", {{"messages", user("hi")}}).json()["tokens"],
            client.post("/apply-template", {{"messages", user("hi")}}).json()["tokens"]);
  EXPECT_EQ(client.post("/tokenize", Json::object()).status, 400);
  EXPECT_EQ(client.post("/detokenize", {{"tokens", Json::array({100000})}}).status, 400);
}

TEST(Service, WhatCannotBeIsSaid) {
  ServiceOptions options = options_of({"attention"});
  options.models.context = 40;
  options.server.limits.body_bytes = 1000;
  Running server(options);
  Client client = server.client();
  const auto expect = [&](const Client::Reply& reply, int status, const std::string& code) {
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_EQ(reply.code(), code) << reply.body;
    const Json error = reply.json()["error"];
    for (const char* key : {"message", "type", "param", "code"}) EXPECT_TRUE(error.contains(key));
    EXPECT_TRUE(reply.headers.contains("X-Request-Id"));
  };
  expect(client.get("/v1/complete"), 404, "unknown_route");
  expect(client.get("/v1/completions"), 405, "method_not_allowed");
  expect(client.post("/v1/models", {}), 405, "method_not_allowed");
  expect(client.get("/v1/models/none"), 404, "model_not_found");
  expect(client.post("/v1/completions", {{"prompt", "x"}, {"model", "none"}}), 404,
         "model_not_found");
  expect(client.ask("POST", "/v1/completions", "{"), 400, "invalid_json");
  expect(client.ask("POST", "/v1/completions", "{}", {{"Content-Type", "text/plain"}}), 415,
         "unsupported_media_type");
  expect(client.post("/v1/completions", {{"prompt", ""}}), 400, "invalid_value");
  expect(client.post("/v1/completions", {{"prompt", Json::array({100000})}}), 400, "invalid_value");
  expect(client.post("/v1/completions", {{"prompt", std::string(41, 'a')}}), 400,
         "context_length_exceeded");
  expect(client.post("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 39}}), 400,
         "context_length_exceeded");
  EXPECT_EQ(client.post("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 38}}).status, 200);
  expect(client.post("/v1/completions", {{"prompt", "abc"}, {"logit_bias", {{"9999", 1}}}}), 400,
         "invalid_value");
  expect(client.post("/v1/chat/completions", {{"messages", user("x")}, {"tempratur", 1}}), 400,
         "unknown_parameter");
  expect(client.get("/v1/models", {{"Host", "evil.example"}}), 403, "bad_host");
  expect(client.get("/v1/models", {{"Origin", "http://evil.example"}}), 403, "bad_origin");
  // the request's own id, where it is a plain word
  EXPECT_EQ(client.get("/health", {{"X-Request-Id", "mine-1"}}).headers.at("X-Request-Id"),
            "mine-1");
  EXPECT_NE(client.get("/health", {{"X-Request-Id", "a b"}}).headers.at("X-Request-Id"), "a b");
  // after this the connection is of no use
  expect(client.post("/v1/completions", {{"prompt", std::string(1000, 'a')}}), 413,
         "body_too_large");
  EXPECT_EQ(client.receive(), "");
}

}  // namespace
}  // namespace tessera::serve::service_test
