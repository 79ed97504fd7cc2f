// The server over loopback, with tiny models of its own and a client that shares no code with it.
#include "tessera/serve/service.h"

#include <sys/stat.h>

#include "tessera/infer/engine/generate.h"
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
  const Json fields = api["paths"]["/detokenize"]["post"]["requestBody"]["content"]
                         ["application/json"]["schema"]["properties"];
  EXPECT_EQ(fields["model"]["type"], Json::array({"string", "null"}));
  EXPECT_EQ(fields["tokens"]["type"], "array");
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
  options.sampling = {.temperature = 0.9,
                      .top_p = 0.95,
                      .typical_p = 0.97,
                      .xtc_probability = 0.3,
                      .dry_multiplier = 0.7,
                      .seed = 11};
  options.stop_ids = infer::eos_ids(alone);
  options.choices = 3;
  options.logprobs = 2;
  const auto ids = alone.tokenizer->encode("hello_there");
  const infer::Generations want =
      infer::generate(alone.model, &*alone.tokenizer, {{ids.begin(), ids.end()}}, options);
  Client client = server.client();
  const Json body = {{"prompt", "hello_there"},
                     {"max_tokens", 20},
                     {"temperature", 0.9},
                     {"top_p", 0.95},
                     {"typical_p", 0.97},
                     {"xtc_probability", 0.3},
                     {"dry_multiplier", 0.7},
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
    ASSERT_EQ(choice["logprobs"]["token_logprobs"].size(), want.rows[i].logprobs.size());
    for (size_t t = 0; t < want.rows[i].logprobs.size(); ++t)
      EXPECT_EQ(choice["logprobs"]["token_logprobs"][t], want.rows[i].logprobs[t].chosen.log_p);
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
  // some of them, though the template shows all
  const auto some = [&](const char* mode, const std::vector<Json>& tools) {
    return Json{{"type", "allowed_tools"}, {"allowed_tools", {{"mode", mode}, {"tools", tools}}}};
  };
  for (const char* only : {"look", "find"}) {
    body["tool_choice"] = some("required", {tool(only)});
    const Json held = client.post("/v1/chat/completions", body).json()["choices"][0]["message"];
    ASSERT_TRUE(held.contains("tool_calls")) << held.dump();
    EXPECT_EQ(held["tool_calls"][0]["function"]["name"], only);
  }
  body["tool_choice"] = some("auto", {tool("look")});
  EXPECT_EQ(client.post("/v1/chat/completions", body).status, 200);
  const auto refused = [&](const char* key, const Json& value, const std::string& param) {
    Json bad = body;
    bad[key] = value;
    const Client::Reply reply = client.post("/v1/chat/completions", bad);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.json()["error"]["param"], param) << reply.body;
  };
  refused("tool_choice", tool("none_such"), "tool_choice");
  refused("tool_choice", some("auto", {tool("none_such")}), "tool_choice");
  refused("tool_choice", some("always", {tool("look")}), "tool_choice");
  refused("tool_choice", some("auto", {}), "tool_choice");
  refused("response_format", {{"type", "json_object"}}, "tool_choice");
}

TEST(Service, FunctionsAreToldInTheConversationWhereTheTemplateKnowsNone) {
  ServiceOptions options = options_of({"attention"});
  const Json tool = {{"type", "function"},
                     {"function", {{"name", "find"}, {"parameters", {{"type", "object"}}}}}};
  const Json body = {{"messages", user("x")},
                     {"max_tokens", 80},
                     {"seed", 5},
                     {"tools", {tool}},
                     {"tool_choice", "required"}};
  options.models.tool_format = "hermes";  // and the model is not told
  EXPECT_EQ(Running(options).client().post("/v1/chat/completions", body).code(),
            "tools_unsupported");
  options.models.tool_format = "generic";
  EXPECT_NE(Running(options)
                .client()
                .post("/v1/chat/completions", body)
                .body.find("the grammar expects '{'"),
            std::string::npos);
  options.models.tool_format = "auto";  // as by default
  std::vector<std::string> notes;
  options.models.say = [&](const std::string& line) { notes.push_back(line); };
  Running server(options);
  Client client = server.client();
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("generic tool prompt"), std::string::npos) << notes[0];
  // a forced call is JSON between tags, for which this vocabulary has no brace
  const std::string said = client.post("/v1/chat/completions", body).body;
  EXPECT_NE(said.find("the grammar expects '{'"), std::string::npos) << said;
  // the model reads of them, and of what came back
  Json asked = {{"messages", body["messages"]}, {"tools", body["tools"]}};
  const Json call = {{"id", "c1"},
                     {"type", "function"},
                     {"function", {{"name", "find"}, {"arguments", R"({"a":1})"}}}};
  asked["messages"].push_back(
      {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}});
  asked["messages"].push_back({{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "yes"}});
  const Client::Reply told = client.post("/apply-template", asked);
  ASSERT_EQ(told.status, 200) << told.body;
  const std::string prompt = told.json()["prompt"];
  const auto has = [&](const char* text) { return prompt.find(text) != std::string::npos; };
  EXPECT_TRUE(has("<|start|>system_You may call functions")) << prompt;
  EXPECT_TRUE(has(R"({"name": "find", "arguments": {"a":1}})")) << prompt;
  EXPECT_TRUE(has("<|start|>user_<tool_response>\nyes\n</tool_response>")) << prompt;
}

TEST(Service, EveryRouteTellsTemplatesTheTime) {
  ServiceOptions options = options_of({"attention"});
  options.models.chat_template =
      "{% if strftime_now('%Y') == '2024' %}july{% endif %}_{{ messages[0].content }}";
  options.models.clock = text::template_clock("2024-07-26", "");
  Running server(options);
  Client client = server.client();
  const Json body = {{"messages", user("x")}, {"max_tokens", 1}};
  const Json shown = client.post("/apply-template", {{"messages", user("x")}}).json();
  EXPECT_EQ(shown["prompt"], "july_x") << shown;
  EXPECT_EQ(client.post("/tokenize", {{"messages", user("x")}}).json()["tokens"], shown["tokens"]);
  const Json answer = client.post("/v1/chat/completions", body).json();
  EXPECT_EQ(answer["usage"]["prompt_tokens"], shown["tokens"].size()) << answer;
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
  const Json& logprobs = choice["logprobs"];
  ASSERT_EQ(logprobs["token_logprobs"].size(), ids.size());
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_EQ(logprobs["token_logprobs"][i], want.log_p[i - 1]);
    EXPECT_EQ(logprobs["top_logprobs"][i].size(), 1u);
    EXPECT_EQ(logprobs["text_offset"][i], i);
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

// as `curl -d` sends it; pages of browsers may send forms anywhere, and must say that it is JSON
TEST(Service, BodiesNeedNotSayThatTheyAreJson) {
  Running server(options_of({"attention"}));
  Client client = server.client();
  const std::string body = Json{{"content", "abc"}}.dump();
  const auto ask = [&](Headers headers, const std::string& text) {
    return client.ask("POST", "/tokenize", text, headers);
  };
  for (const char* type : {"application/x-www-form-urlencoded", "text/plain; charset=utf-8", "",
                           "Application/JSON; charset=utf-8"}) {
    EXPECT_EQ(ask({{"Content-Type", type}}, body).status, 200) << type;
    EXPECT_EQ(ask({{"Content-Type", type}}, "content=abc").code(), "invalid_json") << type;
  }
  const std::string own = fmt::format("http://127.0.0.1:{}", server.port());
  for (const Headers& browser : {Headers{{"Origin", own}},
                                 {{"Sec-Fetch-Site", "same-origin"}},
                                 {{"Sec-Fetch-Site", "none"}}}) {
    Headers form = browser;
    form.emplace_back("Content-Type", "text/plain");
    EXPECT_EQ(ask(form, body).code(), "unsupported_media_type");
    EXPECT_EQ(ask(browser, body).status, 200);
  }
  for (const Headers& foreign : {Headers{{"Origin", "http://evil.example"}},
                                 {{"Origin", "null"}},
                                 {{"Sec-Fetch-Site", "cross-site"}},
                                 {{"Sec-Fetch-Site", "same-site"}}})
    EXPECT_EQ(ask(foreign, body).code(), "bad_origin");
  // a link from elsewhere may lead here
  EXPECT_EQ(client.get("/", {{"Sec-Fetch-Site", "cross-site"}}).status, 200);
}

TEST(Service, SlipsAreFoundAmongOtherNamesToo) {
  Running server(options_of({"attention"}));
  Client client = server.client();
  for (const auto& [slip, name] :
       std::vector<std::pair<std::string, std::string>>{{"max_tokns", "max_tokens"},
                                                        {"repeat_penalt", "repeat_penalty"},
                                                        {"n_predic", "n_predict"},
                                                        {"temprature", "temperature"}}) {
    const Client::Reply reply = client.post("/v1/completions", {{"prompt", "a"}, {slip, 1}});
    EXPECT_EQ(reply.code(), "unknown_parameter");
    EXPECT_NE(reply.body.find("did you mean \\\"" + name + "\\\"?"), std::string::npos)
        << reply.body;
  }
}

TEST(Service, AnswersTellTheirTimes) {
  Running server(options_of({"attention"}));
  Client client = server.client();
  const Json body = {{"prompt", "a_prompt_that_is_long_enough_to_be_kept"},
                     {"max_tokens", 6},
                     {"ignore_eos", true}};
  const Json first = client.post("/v1/completions", body).json()["timings"];
  EXPECT_EQ(first["prompt_n"], 39);
  EXPECT_EQ(first["cache_n"], 0);
  EXPECT_EQ(first["predicted_n"], 6);
  for (const char* time : {"prompt_ms", "predicted_ms", "prompt_per_token_ms",
                           "predicted_per_second", "prompt_per_second"})
    EXPECT_GT(first[time].get<double>(), 0) << time;
  EXPECT_GE(first["queue_ms"].get<double>(), 0);
  // the last event has them
  Json stream = body;
  stream["stream"] = true;
  Events events(client.post("/v1/completions", stream).body);
  EXPECT_EQ(events.all.back()["timings"]["predicted_n"], 6);
  EXPECT_FALSE(events.all.front().contains("timings"));
  stream["stream_options"] = {{"include_usage", true}};
  events = Events(client.post("/v1/completions", stream).body);
  EXPECT_EQ(events.all.back()["timings"]["predicted_n"], 6);
  EXPECT_TRUE(events.all.back()["choices"].empty());
  // every event has them on demand, and they grow
  stream.erase("stream_options");
  stream["timings_per_token"] = true;
  for (const char* path : {"/v1/completions", "/completion"}) {
    events = Events(client.post(path, stream).body);
    ASSERT_GE(events.all.size(), 3u);
    int64_t before = 0;
    for (const Json& event : events.all) {
      ASSERT_TRUE(event.contains("timings")) << event;
      const Json& times = event["timings"];
      EXPECT_EQ(times["prompt_n"].get<int64_t>() + times["cache_n"].get<int64_t>(), 39) << times;
      EXPECT_GT(times["cache_n"], 0);  // the prompt was read before
      EXPECT_GE(times["predicted_n"], before);
      before = times["predicted_n"];
    }
    EXPECT_GE(events.all.front()["timings"]["predicted_n"], 1);
    EXPECT_LT(events.all.front()["timings"]["predicted_n"], 6);
    EXPECT_EQ(before, 6);
  }
}

// beyond the time a text ends with its line, as in llama.cpp's server
TEST(Service, TheTimeForATextEndsItAtALineBreak) {
  Running server(options_of({"attention"}));
  Client client = server.client();
  const text::Tokenizer tokenizer = text::chat_tokenizer();
  const auto ended = [&](const char* path, const Json& ids, int64_t ms) {
    return client
        .post(path, {{"prompt", "hello"},
                     {"max_tokens", 4000},
                     {"ignore_eos", true},
                     {"allowed_token_ids", ids},
                     {"t_max_predict_ms", ms}})
        .json();
  };
  const Json line = {*tokenizer.id("\u010a")}, letter = {*tokenizer.id("a")};
  const Json got = ended("/v1/completions", line, 1);
  const Json choice = got["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length") << got;
  EXPECT_EQ(choice["limit"], "time");
  EXPECT_LT(got["usage"]["completion_tokens"], 4000);
  EXPECT_GE(got["usage"]["completion_tokens"], 1);
  const Json own = ended("/completion", line, 1);
  EXPECT_EQ(own["stop_type"], "limit") << own;
  EXPECT_EQ(own["truncated"], false);
  // without a line's end, or without a limit, it goes on
  for (const Json& other : {ended("/v1/completions", letter, 1), ended("/v1/completions", line, 0),
                            ended("/v1/completions", line, -1)}) {
    EXPECT_EQ(other["choices"][0]["limit"], "max_tokens") << other.dump().substr(0, 200);
    EXPECT_EQ(other["usage"]["completion_tokens"], 4000);
  }
  EXPECT_EQ(client.post("/v1/completions", {{"prompt", "a"}, {"beams", 2}, {"t_max_predict_ms", 5}})
                .json()["error"]["param"],
            "t_max_predict_ms");
}

TEST(Service, ProbabilitiesBehindTheFilters) {
  Running server(options_of({"attention"}));
  Client client = server.client();
  Json body = {{"prompt", "hello"},
               {"max_tokens", 12},
               {"ignore_eos", true},
               {"seed", 5},
               {"top_k", 3},
               {"temperature", 0.8},
               {"logprobs", 10},
               {"logit_bias", {{"3", 1}}},
               {"post_sampling_probs", true}};
  const Json got = client.post("/v1/completions", body).json()["choices"][0];
  for (size_t i = 0; i < 12; ++i) {
    const Json& top = got["logprobs"]["top_logprobs"][i];
    EXPECT_EQ(top.size(), 3u);
    double sum = 0;
    for (const auto& [token, log_p] : top.items()) sum += std::exp(log_p.get<double>());
    EXPECT_NEAR(sum, 1, 1e-9);
    EXPECT_EQ(top[got["logprobs"]["tokens"][i].get<std::string>()],
              got["logprobs"]["token_logprobs"][i]);
  }
  // the text is the same, and the model's own distribution another
  body["post_sampling_probs"] = false;
  const Json own = client.post("/v1/completions", body).json()["choices"][0];
  EXPECT_EQ(own["text"], got["text"]);
  EXPECT_EQ(own["logprobs"]["top_logprobs"][0].size(), 10u);
  EXPECT_NE(own["logprobs"]["token_logprobs"], got["logprobs"]["token_logprobs"]);
  EXPECT_EQ(client.post("/v1/completions", {{"prompt", "a"}, {"post_sampling_probs", true}})
                .json()["error"]["param"],
            "post_sampling_probs");
}

TEST(Service, TheMiddleOfATextIsFilledIn) {
  ServiceOptions options = options_of({"attention"});
  options.models.load = [](const ModelEntry&) {
    const text::Tokenizer tokenizer = text::chat_tokenizer(
        {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"});
    return infer::LoadedModel{
        infer::tiny_model(infer::tiny_layers()[0].second, 7, tokenizer.vocab_size()),
        tokenizer,
        {},
        {}};
  };
  Running server(options);
  Client client = server.client();
  EXPECT_TRUE(client.get("/props").json()["models"][0]["fill_in_the_middle"].get<bool>());
  const auto said = [&](const std::string& text) {
    return client
        .post("/v1/completions",
              {{"prompt", text}, {"parse_special", true}, {"max_tokens", 9}, {"temperature", 0}})
        .json()["choices"][0]["text"];
  };
  const Json want = said("<|fim_prefix|>let_<|fim_suffix|>_end<|fim_middle|>");
  const Json infilled = client
                            .post("/infill", {{"input_prefix", "let_"},
                                              {"input_suffix", "_end"},
                                              {"max_tokens", 9},
                                              {"temperature", 0}})
                            .json();
  EXPECT_EQ(infilled["content"], want) << infilled.dump();
  EXPECT_EQ(infilled["choices"][0]["text"], want);
  EXPECT_EQ(
      client
          .post("/v1/completions",
                {{"prompt", "let_"}, {"suffix", "_end"}, {"max_tokens", 9}, {"temperature", 0}})
          .json()["choices"][0]["text"],
      want);
  // with other files, and a beginning
  const std::string files =
      client
          .post("/infill", {{"input_prefix", "let_"},
                            {"input_suffix", "_end"},
                            {"prompt", "x"},
                            {"input_extra", {{{"filename", "a/b"}, {"text", "other"}}}},
                            {"max_tokens", 9},
                            {"stream", true},
                            {"temperature", 0}})
          .body;
  EXPECT_EQ(Events(files).text(),
            said("<|file_sep|>a/b\nother\n<|file_sep|><|fim_prefix|>let_<|fim_suffix|>_end"
                 "<|fim_middle|>x"));
  EXPECT_EQ(client.post("/infill", Json::object()).code(), "missing_parameter");
  // the parts are input: no token of theirs comes of a text
  EXPECT_EQ(client
                .post("/infill",
                      {{"input_prefix", "<|fim_suffix|>"}, {"max_tokens", 1}, {"ignore_eos", true}})
                .json()["usage"]["prompt_tokens"],
            3 + 14);
}

TEST(Service, CachesAreSharedByWhoMayShare) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("keys", "first\nsecond\n");
  ::chmod(file.c_str(), 0600);
  ServiceOptions options = options_of({"attention"});
  options.access.key_file = file;
  Running server(options);
  Client client = server.client();
  const auto cached = [&](const char* key, const Json& more) {
    Json body = {{"prompt", "a_prompt_that_is_long_enough_to_be_kept"}, {"max_tokens", 2}};
    body.update(more);
    return client.post("/v1/completions", body, {{"X-Api-Key", key}})
        .json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        .get<int64_t>();
  };
  EXPECT_EQ(cached("first", Json::object()), 0);
  EXPECT_GT(cached("first", Json::object()), 30);
  EXPECT_EQ(cached("second", Json::object()), 0);
  EXPECT_EQ(cached("first", {{"cache_salt", "mine"}}), 0);
  EXPECT_GT(cached("first", {{"cache_salt", "mine"}}), 30);
  EXPECT_EQ(cached("second", {{"cache_salt", "mine"}}), 0);
  EXPECT_EQ(cached("first", {{"cache_prompt", false}}), 0);
  EXPECT_EQ(cached("first", {{"cache_prompt", false}}), 0);
}

TEST(Service, PrioritiesAreTheServersToGive) {
  Running server(options_of({"attention"}));
  Client client = server.client();
  const Client::Reply reply = client.post("/v1/completions", {{"prompt", "a"}, {"priority", -1}});
  EXPECT_EQ(reply.code(), "unsupported_parameter");
  EXPECT_NE(reply.body.find("--priorities"), std::string::npos);
  EXPECT_EQ(client.post("/v1/completions", {{"prompt", "a"}, {"priority", 0}}).status, 200);
  EXPECT_EQ(client.post("/v1/completions", {{"prompt", "a"}, {"priority", 11}}).status, 400);
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
  const Client::Reply listed = client.post("/v1/models", {});
  expect(listed, 405, "method_not_allowed");
  EXPECT_EQ(listed.headers.at("Allow"), "GET");
  expect(client.get("/v1/models/none"), 404, "model_not_found");
  expect(client.post("/v1/completions", {{"prompt", "x"}, {"model", "none"}}), 404,
         "model_not_found");
  expect(client.ask("POST", "/v1/completions", "{"), 400, "invalid_json");
  expect(client.ask("POST", "/v1/completions", "{}", {{"Content-Type", "image/png"}}), 415,
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
