// What requests for texts may say, over loopback: each field acts, or is refused by its name.
#include "tessera/infer/generate.h"
#include "tessera/serve/serve_testing.h"

namespace tessera::serve::generation_routes_test {
namespace {

class GenerationRoutes : public ::testing::Test {
 protected:
  Json completed(Json body) {
    if (!body.contains("prompt")) body["prompt"] = "hello_there";
    if (!body.contains("max_tokens")) body["max_tokens"] = 12;
    body["seed"] = 3;
    return client_.post("/v1/completions", body).json();
  }
  std::string said(const Json& body) {
    const Json got = completed(body);
    if (!got.contains("choices")) {
      ADD_FAILURE() << got.dump();
      return {};
    }
    return got["choices"][0]["text"];
  }
  void refused(const Json& body, const std::string& param, const std::string& what) {
    const Json got = completed(body);
    ASSERT_TRUE(got.contains("error")) << got.dump();
    EXPECT_EQ(got["error"]["param"], param);
    EXPECT_NE(got["error"]["message"].get<std::string>().find(what), std::string::npos)
        << got.dump();
  }

  static ServiceOptions short_chats() {
    ServiceOptions options = options_of({"attention"});
    options.max_tokens = 40;
    return options;
  }
  Running server_{short_chats()};
  Client client_ = server_.client();
  text::Tokenizer tokenizer_ = text::chat_tokenizer();
};

TEST_F(GenerationRoutes, SamplersActInTheOrderOfTheRequest) {
  const Json plain = {{"temperature", 2}, {"top_p", 0.3}, {"top_k", 8}};
  const auto of_order = [&](const std::vector<std::string>& samplers) {
    Json body = plain;
    body["samplers"] = samplers;
    return said(body);
  };
  // the order that is the usual one, and one in which few tokens weigh as much before the
  // temperature as many behind it
  EXPECT_EQ(of_order({"temperature", "top_k", "top_p"}), said(plain));
  infer::GenerateOptions options;
  options.max_new_tokens = 12;
  options.sampling = {.temperature = 2, .top_k = 8, .top_p = 0.3, .seed = 3};
  options.sampling.samplers = {infer::Sampler::top_k, infer::Sampler::top_p,
                               infer::Sampler::temperature};
  const infer::LoadedModel alone = tiny_loaded("attention");
  options.stop_ids = infer::end_ids(alone);
  const auto ids = alone.tokenizer->encode("hello_there");
  EXPECT_EQ(of_order({"top_k", "top_p", "temperature"}),
            infer::generate(alone.model, &*alone.tokenizer, {{ids.begin(), ids.end()}}, options)
                .rows[0]
                .text);
  refused({{"samplers", {"topk"}}}, "samplers", "did you mean top_k?");
  refused({{"samplers", {"top_k", "top_k"}}}, "samplers", "top_k comes twice");
  refused({{"samplers", {"temperature"}}, {"top_p", 0.5}}, "samplers", "top_p without top_p");
  refused({{"samplers", {"temperature"}}, {"mirostat", 2}}, "mirostat", "samplers beside mirostat");
  refused({{"samplers", "top_k and top_p"}}, "samplers", "there is no");
}

TEST_F(GenerationRoutes, TokensAreAllowedForbiddenAndFavoured) {
  const auto id = [&](const char* text) { return *tokenizer_.id(text); };
  const std::string only_ab = said({{"allowed_token_ids", {id("a"), id("b")}}, {"temperature", 1}});
  EXPECT_EQ(only_ab.size(), 12u);
  EXPECT_EQ(only_ab.find_first_not_of("ab"), std::string::npos) << only_ab;
  refused({{"allowed_token_ids", {999}}}, "allowed_token_ids", "names token 999; expected 0 to");
  refused({{"allowed_token_ids", Json::array()}}, "allowed_token_ids", "is empty");
  // of two letters one is bad alone, and both as a word
  const std::string free = only_ab.substr(0, 2);
  const Json two = {{"allowed_token_ids", {id("a"), id("b")}}, {"temperature", 0}};
  Json none = two;
  none["bad_words"] = {"a"};
  EXPECT_EQ(said(none), "bbbbbbbbbbbb");
  none["bad_words"] = {"ab", "bb"};
  EXPECT_EQ(said(none).find("ab"), std::string::npos);
  EXPECT_EQ(said(none).find("bb"), std::string::npos);
  refused({{"bad_words", {""}}}, "bad_words", "0 bytes");
  // a bias of a text is that of its tokens
  EXPECT_EQ(said({{"logit_bias", {{"q", 100}}}, {"temperature", 0}}), "qqqqqqqqqqqq");
  EXPECT_EQ(said({{"logit_bias", Json::array({Json::array({"q", 100})})}, {"temperature", 0}}),
            "qqqqqqqqqqqq");
  EXPECT_EQ(said({{"logit_bias", {{std::to_string(id("q")), 100}}}, {"temperature", 0}}),
            "qqqqqqqqqqqq");
  // no pair of letters twice
  const std::string pairs = said({{"no_repeat_ngram_size", 2},
                                  {"allowed_token_ids", {id("a"), id("b")}},
                                  {"prompt", "c"},
                                  {"max_tokens", 4}});
  std::set<std::string> seen;
  for (size_t i = 0; i + 1 < pairs.size(); ++i)
    EXPECT_TRUE(seen.insert(pairs.substr(i, 2)).second) << pairs;
}

TEST_F(GenerationRoutes, WhatEndsATextMayStayInIt) {
  const std::string whole = said({{"temperature", 0}});
  ASSERT_GT(whole.size(), 4u);
  const std::string stop = whole.substr(2, 2);
  const size_t at = whole.find(stop);
  const Json body = {{"temperature", 0}, {"stop", stop}};
  EXPECT_EQ(said(body), whole.substr(0, at));
  Json kept = body;
  kept["include_stop_str_in_output"] = true;
  EXPECT_EQ(said(kept), whole.substr(0, at + 2));
  kept["stream"] = true;
  kept["prompt"] = "hello_there";
  kept["max_tokens"] = 12;
  EXPECT_EQ(Events(client_.post("/v1/completions", kept).body).text(), whole.substr(0, at + 2));
}

TEST_F(GenerationRoutes, OtherNamesAndHints) {
  EXPECT_EQ(completed({{"n_cmpl", 2}})["choices"].size(), 2u);
  EXPECT_EQ(completed({{"n", 2}, {"best_of", 2}})["choices"].size(), 2u);
  refused({{"n", 2}, {"best_of", 3}}, "best_of", "best_of is 3 beside n 2");
  EXPECT_TRUE(completed({{"return_tokens", true}})["choices"][0].contains("token_ids"));
  EXPECT_EQ(completed({{"n_probs", 2}})["choices"][0]["logprobs"]["top_logprobs"][0].size(), 2u);
  const Json hint = {{"type", "content"}, {"content", "hello"}};
  EXPECT_EQ(said({{"prediction", hint}}), said(Json::object()));
  refused({{"prediction", "hello"}}, "prediction", "expected {\"type\"");
  EXPECT_TRUE(completed({{"user", "me"}, {"metadata", {{"a", "b"}}}}).contains("choices"));
  refused({{"user", 5}}, "user", "expected of type string");
  refused({{"metadata", "a"}}, "metadata", "expected of type object");
  refused({{"stop_token_ids", {999}}}, "stop_token_ids", "names token 999; expected 0 to");
}

TEST_F(GenerationRoutes, LlamaCppsOwnClientsReadTheContent) {
  const Json body = {{"prompt", "hello_there"}, {"n_predict", 6}, {"temperature", 0}};
  const Json got = client_.post("/completion", body).json();
  const std::string want = said({{"temperature", 0}, {"max_tokens", 6}});
  EXPECT_EQ(got["content"], want) << got.dump();
  EXPECT_EQ(got["stop"], true);
  EXPECT_EQ(got["stop_type"], "limit");
  EXPECT_EQ(got["tokens_predicted"], 6);
  EXPECT_EQ(got["tokens_evaluated"], 11);
  Json stopped = body;
  stopped["stop"] = {want.substr(2, 1)};
  const Json word = client_.post("/completion", stopped).json();
  EXPECT_EQ(word["stop_type"], "word");
  EXPECT_EQ(word["stopping_word"], want.substr(2, 1));
  // streamed, the pieces make up the text, and the last says why it ended
  Json streamed = body;
  streamed["stream"] = true;
  std::string text;
  const Events events(client_.post("/completion", streamed).body);
  for (const Json& event : events.all) text += event["content"].get<std::string>();
  EXPECT_EQ(text, want);
  EXPECT_EQ(events.all.back()["stop"], true);
  EXPECT_EQ(events.all.front()["stop"], events.all.size() == 1);
  // without a number it goes on as long as there is room
  EXPECT_EQ(client_.post("/completion", {{"prompt", "a"}, {"seed", 1}, {"ignore_eos", true}})
                .json()["tokens_predicted"],
            40);
}

TEST_F(GenerationRoutes, WarnsOfWhatIsNotDone) {
  const auto header = [](const Client::Reply& reply) {
    const auto found = reply.headers.find("X-Tessera-Warning");
    return found == reply.headers.end() ? std::string() : found->second;
  };
  const auto posted = [&](const Json& body) { return client_.post("/v1/completions", body); };
  EXPECT_EQ(header(posted({{"prompt", "a|start|"}, {"max_tokens", 1}})), "");
  EXPECT_NE(header(posted({{"prompt", "a<|start|>"}, {"max_tokens", 1}})).find("parse_special"),
            std::string::npos);
  EXPECT_EQ(header(posted({{"prompt", "a<|start|>"}, {"max_tokens", 1}, {"parse_special", true}})),
            "");
  // a schema that cannot be held to is refused, unless the request does not insist
  // (the vocabulary has letters alone)
  Json format = {
      {"type", "json_schema"},
      {"json_schema",
       {{"name", "x"}, {"schema", {{"enum", {true, false}}, {"not", {{"const", "b"}}}}}}}};
  const Client::Reply refused =
      posted({{"prompt", "a"}, {"max_tokens", 1}, {"response_format", format}});
  EXPECT_EQ(refused.code(), "unsupported_schema") << refused.body;
  format["json_schema"]["strict"] = false;
  const Client::Reply loose =
      posted({{"prompt", "a"}, {"max_tokens", 1}, {"response_format", format}});
  EXPECT_EQ(loose.status, 200) << loose.body;
  EXPECT_EQ(header(loose), "not held to: #/not");
}

TEST_F(GenerationRoutes, ATemplateOfTheRequestIsTheServersToAllow) {
  const Json body = {
      {"messages", user("hi")},
      {"max_tokens", 4},
      {"chat_template", "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"}};
  const Json refused = client_.post("/v1/chat/completions", body).json();
  EXPECT_EQ(refused["error"]["param"], "chat_template") << refused.dump();
  ServiceOptions options = options_of({"attention"});
  options.request_templates = true;
  options.models.chat_template = "";
  Running server(options);
  Client client = server.client();
  EXPECT_EQ(client.post("/v1/chat/completions", {{"messages", user("hi")}}).code(),
            "no_chat_template");
  const Json got = client.post("/v1/chat/completions", body).json();
  EXPECT_EQ(got["usage"]["prompt_tokens"], 3) << got.dump();
  Json broken = body;
  broken["chat_template"] = "{% if %}";
  EXPECT_EQ(client.post("/v1/chat/completions", broken).code(), "template_error");
}

class ThinkingRoutes : public GenerationRoutes {
 protected:
  static ServiceOptions thinking() {
    ServiceOptions options = options_of({"attention"});
    options.models.chat_template = std::string(kTemplate) +
                                   "{% if add_generation_prompt %}"
                                   "<think>{% endif %}{# </think> #}";
    return options;
  }
  Json message(Json body) {
    body["messages"] = user("hi");
    body["seed"] = 3;
    const Json got = thinking_client_.post("/v1/chat/completions", body).json();
    if (!got.contains("choices")) {
      ADD_FAILURE() << got.dump();
      return {};
    }
    usage_ = got["usage"];
    return got["choices"][0]["message"];
  }
  Running thinks_{thinking()};
  Client thinking_client_ = thinks_.client();
  Json usage_;
};

TEST_F(ThinkingRoutes, ABudgetEndsThoughts) {
  // left alone the tiny model never writes the closing tag
  const Json free = message({{"max_tokens", 40}});
  EXPECT_TRUE(free["content"].get<std::string>().empty());
  const std::string thoughts = free["reasoning_content"];
  const Json held = message({{"max_tokens", 40}, {"reasoning_budget", 5}});
  EXPECT_EQ(held["reasoning_content"], thoughts.substr(0, 5));
  EXPECT_FALSE(held["content"].get<std::string>().empty());
  EXPECT_EQ(message({{"max_tokens", 40}, {"reasoning_budget", 0}}).count("reasoning_content"), 0u);
}

TEST_F(ThinkingRoutes, AFormHoldsTheAnswerAndNotTheThoughts) {
  const Json got = message({{"max_tokens", 60},
                            {"reasoning_budget", 5},
                            {"structured_outputs", {{"choice", {"yes", "no"}}}}});
  EXPECT_EQ(got["reasoning_content"].get<std::string>().size(), 5u);
  const std::string answer = got["content"];
  EXPECT_TRUE(answer == "yes" || answer == "no") << answer;
  // without thoughts the form begins at once
  EXPECT_TRUE(
      client_
          .post("/v1/chat/completions", {{"messages", user("hi")},
                                         {"structured_outputs", {{"choice", {"yes", "no"}}}},
                                         {"max_tokens", 5}})
          .json()["choices"][0]["message"]["content"]
          .get<std::string>()
          .size() <= 3);
}

}  // namespace
}  // namespace tessera::serve::generation_routes_test
