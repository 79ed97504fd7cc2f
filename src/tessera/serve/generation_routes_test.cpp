// What requests for texts may say, over loopback: each field acts, or is refused by its name.
#include <set>

#include "tessera/infer/engine/beam.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/serve/serve_testing.h"
#include "tessera/serve/service_state.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/tokenizer_files/tokenizer_json_parts.h"

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
  options.stop_ids = infer::eos_ids(alone);
  const auto ids = alone.tokenizer->encode("hello_there");
  EXPECT_EQ(of_order({"top_k", "top_p", "temperature"}),
            infer::generate(alone.model, &*alone.tokenizer, {{ids.begin(), ids.end()}}, options)
                .rows[0]
                .text);
  refused({{"samplers", {"topk"}}}, "samplers", "did you mean top_k?");
  refused({{"samplers", {"top_k", "top_k"}}}, "samplers", "top_k comes twice");
  refused({{"samplers", {"temperature"}}, {"top_p", 0.5}}, "samplers", "top_p without top_p");
  refused({{"samplers", {"temperature"}}, {"mirostat", 2}}, "mirostat", "samplers with mirostat");
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
  refused({{"n", 2}, {"best_of", 3}}, "best_of", "best_of is 3, n is 2");
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

// -1 is a new seed each time, as for llama.cpp's clients, and every answer names the one it had
TEST_F(GenerationRoutes, SeedMinusOneIsANewOneEachTime) {
  for (const char* path : {"/v1/completions", "/completion", "/infill", "/v1/chat/completions"}) {
    if (path == std::string("/infill")) continue;  // of models whose vocabulary has the tokens
    std::set<std::string> texts;
    std::set<uint64_t> seeds;
    Json body = {{"max_tokens", 20}, {"temperature", 1}, {"seed", -1}};
    if (path == std::string("/v1/chat/completions"))
      body["messages"] = user("hello");
    else
      body["prompt"] = "hello";
    const auto text_of = [&](const Json& answer) {
      const Json& choice = answer["choices"][0];
      return (choice.contains("text") ? choice["text"] : choice["message"]["content"])
          .get<std::string>();
    };
    Json last;
    for (int i = 0; i < 4; ++i) {
      last = client_.post(path, body).json();
      ASSERT_TRUE(last.contains("seed")) << last.dump();
      seeds.insert(last["seed"].get<uint64_t>());
      texts.insert(text_of(last));
    }
    EXPECT_EQ(seeds.size(), 4u) << path;
    EXPECT_GT(texts.size(), 1u) << path;
    body["seed"] = last["seed"];
    EXPECT_EQ(text_of(client_.post(path, body).json()), text_of(last)) << path;
  }
  // llama.cpp shows the same in 32 bits
  const Json shown = {{"prompt", "a"}, {"seed", 4294967295u}, {"n_predict", 1}};
  EXPECT_NE(client_.post("/completion", shown).json()["seed"], 4294967295u);
  EXPECT_EQ(client_.post("/v1/completions", shown).json()["seed"], 4294967295u);
}

TEST_F(GenerationRoutes, MinusOneTokenIsAsManyAsThereIsRoomFor) {
  for (const char* name : {"max_tokens", "n_predict", "max_completion_tokens"}) {
    const Json tail = {{name, -1}, {"seed", 1}, {"ignore_eos", true}};
    Json body = tail;
    body["prompt"] = "a";
    EXPECT_EQ(client_.post("/v1/completions", body).json()["usage"]["completion_tokens"], 40)
        << name;
    EXPECT_EQ(client_.post("/completion", body).json()["tokens_predicted"], 40) << name;
    body = tail;
    body["messages"] = user("a");
    EXPECT_EQ(client_.post("/v1/chat/completions", body).json()["usage"]["completion_tokens"], 40)
        << name;
  }
}

// all of llama.cpp's samplers by name, with options of others that are switched off
TEST_F(GenerationRoutes, OptionsThatSwitchTheirSamplerOffGoWithAnySamplers) {
  const Json samplers = {"penalties", "dry",   "top_k", "typ_p",
                         "top_p",     "min_p", "xtc",   "temperature"};
  const Json off = {{"samplers", samplers},      {"top_n_sigma", -1}, {"top_h", 0},
                    {"no_repeat_ngram_size", 0}, {"top_k", 40},       {"temperature", 0.8}};
  EXPECT_EQ(said(off), said({{"top_k", 40}, {"temperature", 0.8}, {"samplers", samplers}}));
  Json on = off;
  on["top_n_sigma"] = 1;
  refused(on, "samplers", "top_n_sigma without top_n_sigma among samplers");
  refused({{"mirostat", 2}, {"top_k", 40}}, "mirostat", "top_k with mirostat");
  EXPECT_NE(said({{"mirostat", 2}, {"top_k", 0}, {"top_p", 1}, {"min_p", 0}}), "");
}

TEST_F(GenerationRoutes, ASearchRefusesWhatItWouldNotUse) {
  for (const auto& [name, value] : {std::pair<const char*, Json>{"temperature", 1},
                                    {"stream", true},
                                    {"n", 2},
                                    {"t_max_predict_ms", 5},
                                    {"logprobs", 1}})
    refused({{"beams", 2}, {name, value}}, name, "is not available with beam search");
  EXPECT_TRUE(
      completed({{"beams", 2}, {"presence_penalty", 0}, {"top_p", 0.9}}).contains("choices"));
  for (const auto& [name, value] :
       {std::pair<const char*, Json>{"early_stopping", true}, {"length_penalty", 2}})
    refused({{name, value}}, name, "without beam search; expected beams of 2 or more");
  // the defaults, which clients send along
  for (const auto& [name, value] : {std::pair<const char*, Json>{"early_stopping", false},
                                    {"length_penalty", 1},
                                    {"num_beams", 1}})
    EXPECT_TRUE(completed({{name, value}, {"max_tokens", 1}}).contains("choices")) << name;
  refused({{"beams", 2}, {"early_stopping", "always"}}, "early_stopping",
          "is a string; expected true, false or \"never\"");
}

// what changes single logits changes log p in a search, and it ends as early_stopping says
TEST_F(GenerationRoutes, ASearchIsThatOfTheLibrary) {
  const infer::LoadedModel alone = tiny_loaded("attention");
  const auto ids = alone.tokenizer->encode("hello_there");
  const auto id = [&](const char* text) { return static_cast<int64_t>(*tokenizer_.id(text)); };
  infer::GenerateOptions options;
  options.max_new_tokens = 12;
  options.stop_ids = infer::eos_ids(alone);
  options.stop_ids.push_back(id("e"));
  options.sampling.logit_bias = {{id("q"), 3}};
  options.sampling.sequence_bias = {{{id("q"), id("q")}, -INFINITY}, {{id("z")}, 2}};
  options.sampling.frequency_penalty = 0.5;
  options.sampling.bad_words = {"ab"};
  Json body = {{"num_beams", 3},
               {"length_penalty", 2},
               {"logit_bias", {{"q", 3}}},
               {"sequence_bias", {{{id("q"), id("q")}, false}, {{id("z")}, 2}}},
               {"frequency_penalty", 0.5},
               {"bad_words", {"ab"}},
               {"stop_token_ids", {id("e")}}};
  using convert::EarlyStopping;
  for (const auto& [said, means] : {std::pair<Json, EarlyStopping>{true, EarlyStopping::always},
                                    {false, EarlyStopping::heuristic},
                                    {"never", EarlyStopping::never}}) {
    body["early_stopping"] = said;
    const auto want =
        infer::beam_search(alone.model, &*alone.tokenizer, {{ids.begin(), ids.end()}}, options,
                           {.beams = 3, .length_penalty = 2, .early_stopping = means});
    EXPECT_EQ(this->said(body), want.rows[0].text) << said;
  }
  // a stop string ends a hypothesis
  const std::string whole = said(body);
  ASSERT_GE(whole.size(), 4u);
  body["stop"] = whole.substr(2, 2);
  options.stop_strings = {whole.substr(2, 2)};
  const infer::Generation want =
      infer::beam_search(alone.model, &*alone.tokenizer, {{ids.begin(), ids.end()}}, options,
                         {.beams = 3, .length_penalty = 2, .early_stopping = EarlyStopping::never})
          .rows[0];
  const Json stopped = completed(body)["choices"][0];
  EXPECT_EQ(stopped["text"], want.text);
  EXPECT_EQ(stopped["finish_reason"], want.finish_reason);
}

TEST_F(GenerationRoutes, SequencesAreBiasedAsGenerationConfigSays) {
  const auto id = [&](const char* text) { return static_cast<int64_t>(*tokenizer_.id(text)); };
  const Json greedy = {{"temperature", 0}, {"allowed_token_ids", {id("a"), id("b")}}};
  Json body = greedy;
  body["sequence_bias"] = {{{id("a")}, -50}};
  EXPECT_EQ(said(body), "bbbbbbbbbbbb");
  body["sequence_bias"] = {{{id("a")}, false}};
  EXPECT_EQ(said(body), "bbbbbbbbbbbb");
  // of a sequence the last token alone is biased, where the others precede it
  body["sequence_bias"] = {{{id("a"), id("a")}, 50}, {{id("b"), id("a")}, 50}};
  EXPECT_EQ(said(body).substr(1), "aaaaaaaaaaa");
  for (const auto& [value, message] :
       {std::pair<Json, const char*>{{{"a", 1}}, "sequence_bias is no list of at most 1024"},
        {{{3, 1}}, "sequence_bias"},
        {Json::array({Json::array({Json::array(), 1})}), "without a token"},
        {Json::array({Json::array({Json::array({3})})}), "expected [[[id, ...], bias], ...]"},
        {Json::array({Json::array({Json::array({3}), "x"})}), "sequence_bias"},
        {Json::array({Json::array({Json::array({9999}), 1})}), "names token 9999; expected 0 to"}})
    refused({{"sequence_bias", value}}, "sequence_bias", message);
}

// OpenAI's finish_reason is "length" of both
TEST_F(GenerationRoutes, AnswersSayWhetherTheContextOrTheRequestCutThem) {
  ServiceOptions options = options_of({"attention"});
  options.models.context = 48;
  Running server(options);
  Client client = server.client();
  const Json greedy = {{"prompt", "hello_there"}, {"temperature", 0}, {"ignore_eos", true}};
  const auto ends = [&](const char* path, const Json& more) {
    Json body = greedy;
    body.update(more);
    return client.post(path, body).json();
  };
  for (const auto& [most, limit] : {std::pair{3, "max_tokens"}, {-1, "context"}}) {
    const Json choice = ends("/v1/completions", {{"max_tokens", most}})["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(choice["limit"], limit) << choice;
    const Json search = ends("/v1/completions", {{"max_tokens", most}, {"beams", 2}})["choices"][0];
    EXPECT_EQ(search["limit"], limit) << search;
    const Json own = ends("/completion", {{"n_predict", most}});
    EXPECT_EQ(own["stop_type"], "limit");
    EXPECT_EQ(own["truncated"], most < 0) << own;
    Json chat = {{"messages", user("hello")}, {"ignore_eos", true}, {"max_tokens", most}};
    EXPECT_EQ(client.post("/v1/chat/completions", chat).json()["choices"][0]["limit"], limit);
    chat["stream"] = true;
    const Events events(client.post("/v1/chat/completions", chat).body);
    EXPECT_EQ(events.all.back()["choices"][0]["limit"], limit);
  }
  // a text that ends by itself was cut by neither
  const Json stopped = ends(
      "/v1/completions", {{"max_tokens", 12}, {"stop", said({{"temperature", 0}}).substr(1, 1)}});
  EXPECT_FALSE(stopped["choices"][0].contains("limit")) << stopped;
}

TEST_F(GenerationRoutes, SchemasOfLlamaCppsClientsStandBesideTheType) {
  // the vocabulary has letters alone
  const Json schema = {{"enum", {"b"}}};
  for (const char* type : {"json_object", "json_schema"}) {
    const Json got =
        completed({{"response_format", {{"type", type}, {"schema", {{"not", {{"const", 1}}}}}}}});
    EXPECT_EQ(got["error"]["code"], "unsupported_schema") << got.dump();
  }
  // members of structured_outputs that are null are none
  EXPECT_EQ(said({{"structured_outputs", {{"json", nullptr}, {"regex", "ab+c"}}}}).substr(0, 2),
            "ab");
  EXPECT_EQ(said({{"guided_regex", "ab+c"}}), said({{"structured_outputs", {{"regex", "ab+c"}}}}));
  EXPECT_EQ(said({{"guided_choice", {"hello"}}}), "hello");
}

TEST_F(GenerationRoutes, WarnsOfWhatIsNotDone) {
  const auto header = [](const Client::Reply& reply) {
    const auto found = reply.headers.find("X-Tessera-Warning");
    return found == reply.headers.end() ? std::string() : found->second;
  };
  const auto posted = [&](const Json& body) { return client_.post("/v1/completions", body); };
  EXPECT_EQ(header(posted({{"prompt", "a<|start|>"}, {"max_tokens", 1}})), "");
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

// as transformers, llama.cpp's server and vLLM read them; texts of others are no prompts
TEST_F(GenerationRoutes, RawPromptsSpellSpecialTokens) {
  const auto tokens = [&](const char* path, Json body) {
    body["max_tokens"] = 1;
    body["ignore_eos"] = true;
    const Json got = client_.post(path, body).json();
    return got.contains("usage") ? got["usage"]["prompt_tokens"] : got;
  };
  const Json prompt = {{"prompt", "a<|start|>b"}};
  Json as_text = prompt;
  as_text["parse_special"] = false;
  for (const char* path : {"/v1/completions", "/completion"}) {
    EXPECT_EQ(tokens(path, prompt), 3) << path;
    EXPECT_EQ(tokens(path, as_text), 2 + 9) << path;
  }
  const auto cut = [&](const Json& body) {
    return client_.post("/tokenize", body).json()["count"];
  };
  EXPECT_EQ(cut({{"content", "a<|start|>b"}}), 3);
  EXPECT_EQ(cut({{"prompt", "a<|start|>b"}}), 3);
  EXPECT_EQ(cut({{"content", "a<|start|>b"}, {"parse_special", false}}), 2 + 9);
  // <|start|>user_ ... <|end|><|start|>assistant_
  EXPECT_EQ(cut({{"messages", user("a<|start|>b")}}), 1 + 5 + (2 + 9) + 2 + 10);
  // the parts around a middle, and passages, may be of others
  refused({{"prompt", "a"}, {"suffix", "b"}, {"parse_special", true}}, "parse_special",
          "not available with suffix");
  refused({{"prompt", "a"}, {"retrieve", true}, {"parse_special", true}}, "parse_special",
          "passages could contain special tokens");
}

/// "a", "b" and <|start|>, which the tokenizer puts in front of every text.
infer::LoadedModel with_bos(const ModelEntry&) {
  infer::LoadedModel loaded = tiny_loaded("attention");
  Json file =
      text::empty_tokenizer_json(Json::array({text::added_token_json(2, "<|start|>", true)}));
  file["model"] = text::bpe_json({{"a", 0}, {"b", 1}}, Json::array());
  const Json start = {{"SpecialToken", {{"id", "<|start|>"}, {"type_id", 0}}}},
             rest = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  file["post_processor"] = {{"type", "TemplateProcessing"}, {"single", Json::array({start, rest})}};
  file["post_processor"]["special_tokens"]["<|start|>"] = {
      {"id", "<|start|>"}, {"ids", Json::array({2})}, {"tokens", Json::array({"<|start|>"})}};
  loaded.tokenizer =
      text::tokenizer_from_json(file.dump(), "test", {R"({"bos_token": "<|start|>"})"});
  return loaded;
}

TEST_F(GenerationRoutes, ABeginOfTextThatIsThereTwiceIsSaidOnce) {
  ServiceOptions options = options_of({"attention"});
  options.models.load = with_bos;
  Running server(options);
  Client client = server.client();
  const auto asked = [&](const char* path, Json body) {
    body["max_tokens"] = 1;
    const Client::Reply reply = client.post(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    const auto found = reply.headers.find("X-Tessera-Warning");
    return found == reply.headers.end() ? std::string() : found->second;
  };
  const std::string warning =
      "the prompt begins with <|start|>, which the tokenizer adds as well, so that the model reads "
      "it twice; leave it out of the text";
  EXPECT_EQ(asked("/v1/completions", {{"prompt", {"<|start|>a", "<|start|>b"}}}), warning);
  EXPECT_EQ(asked("/completion", {{"prompt", "<|start|>a"}}), warning);
  EXPECT_EQ(asked("/v1/completions", {{"prompt", "a"}}), "");
  EXPECT_EQ(asked("/v1/completions", {{"prompt", "ab<|start|>"}}), "");
  const Client::Reply cut = client.post("/tokenize", {{"prompt", "<|start|>a"}});
  EXPECT_EQ(cut.json()["count"], 3);
  EXPECT_EQ(cut.headers.at("X-Tessera-Warning"), warning);
  EXPECT_FALSE(
      client.post("/tokenize", {{"content", "<|start|>a"}}).headers.contains("X-Tessera-Warning"));
}

constexpr const char* kSlowTemplate =
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";

// a run is some hundred milliseconds long at most, and what a template shows is found out by
// several
TEST_F(GenerationRoutes, ASlowTemplateEndsWithItsRequest) {
  ServiceOptions options = options_of({"attention"});
  options.request_templates = true;
  Running server(options);
  Client client = server.client();
  Json body = {{"messages", user("hi")}, {"max_tokens", 4}, {"chat_template", kSlowTemplate}};
  for (const char* path : {"/v1/chat/completions", "/apply-template"}) {
    EXPECT_EQ(client.post(path, body).status, 400) << path;  // too many steps
    Json hasty = body;
    hasty["timeout_ms"] = 1;
    const Client::Reply late = client.post(path, hasty);
    EXPECT_EQ(late.status, 504) << path << late.body;
    EXPECT_EQ(late.code(), "deadline_exceeded");
  }
  // the model's own
  options.models.chat_template = kSlowTemplate;
  options.server.limits.deadline = std::chrono::milliseconds(1);
  Running own(options);
  for (const char* path : {"/v1/chat/completions", "/apply-template", "/tokenize"})
    EXPECT_EQ(own.client().post(path, {{"messages", user("hi")}}).status, 504) << path;
}

TEST_F(GenerationRoutes, ATemplateEndsWhereItsClientHasGone) {
  struct Nowhere final : ByteSink {
    void send(std::string, bool) override {}
    size_t unsent() const override { return 0; }
  };
  const auto state = std::make_shared<ServiceState>(options_of({"attention"}));
  const auto exchange =
      std::make_shared<Exchange>(HttpRequest{}, "id", std::make_shared<Nowhere>(), true);
  const text::ChatPrompt prompts(text::chat_tokenizer(), kSlowTemplate, "test");
  const auto status = [&] {
    try {
      prompts.render({.messages = user("hi"), .poll = state->poll_of(exchange)});
    } catch (const ApiError& error) {
      return error.status();
    } catch (const Error&) {  // of its steps
    }
    return 0;
  };
  EXPECT_EQ(status(), 0);
  exchange->disconnected().request();
  EXPECT_EQ(status(), 408);
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
  // the same on the route that shows the prompt
  EXPECT_EQ(client_.post("/apply-template", body).json()["error"]["param"], "chat_template");
  EXPECT_EQ(client.post("/apply-template", body).json()["prompt"], "hi<|end|>");
  EXPECT_EQ(client.post("/apply-template", broken).code(), "template_error");
  EXPECT_EQ(client.post("/apply-template", {{"messages", user("hi")}}).code(), "no_chat_template");
}

// one of the model's own files: it answers without, and says why it does not chat
TEST_F(GenerationRoutes, ATemplateThatCannotBeReadIsNoFaultOfTheServer) {
  ServiceOptions options = options_of({"attention", "mamba2"});
  options.models.chat_template = "";
  std::vector<std::string> warnings;
  options.models.say = [&](const std::string& line) { warnings.push_back(line); };
  options.models.load = [](const ModelEntry& entry) {
    infer::LoadedModel loaded = tiny_loaded(entry.path);
    loaded.tokenizer = text::chat_tokenizer({}, "{% with a = 1 %}{{ a }}{% endwith %}");
    return loaded;
  };
  Running server(options);
  Client client = server.client();
  for (const char* model : {"attention", "mamba2"}) {
    EXPECT_EQ(client.post("/v1/completions", {{"model", model}, {"prompt", "a"}}).status, 200);
    for (const char* path : {"/v1/chat/completions", "/apply-template", "/tokenize"}) {
      const Client::Reply chat = client.post(path, {{"model", model}, {"messages", user("hi")}});
      EXPECT_EQ(chat.status, 400) << chat.body;
      EXPECT_EQ(chat.code(), "no_chat_template");
      EXPECT_NE(chat.body.find("cannot be read"), std::string::npos) << chat.body;
      EXPECT_NE(chat.body.find("--chat-template FILE"), std::string::npos) << chat.body;
    }
  }
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_EQ(warnings[0].substr(0, 10), "attention:");
  // one that the caller has given is the caller's to mend
  options.models.chat_template = "{% if %}";
  EXPECT_THROW(Service s(options), Error);
}

// a model has once called a function with what is no JSON: the conversation goes on
TEST_F(GenerationRoutes, AMalformedCallOfAnOldTurnIsWritten) {
  const auto body = [](const Json& arguments) {
    Json messages = user("x");
    messages.push_back({{"role", "assistant"},
                        {"content", nullptr},
                        {"tool_calls",
                         {{{"id", "c"},
                           {"type", "function"},
                           {"function", {{"name", "f"}, {"arguments", arguments}}}}}}});
    messages.push_back({{"role", "tool"}, {"tool_call_id", "c"}, {"content", "1"}});
    return Json{{"messages", messages}, {"max_tokens", 1}};
  };
  const auto prompt = [&](const char* way, const Json& arguments) {
    ServiceOptions options = options_of({"attention"});
    options.models.chat_template =
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% for c in "
        "m.tool_calls or [] %}" +
        std::string(way) + "{% endfor %}{% endfor %}";
    options.models.tool_format = "hermes";  // else calls of an unknown form become plain text
    Running server(options);
    Client client = server.client();
    EXPECT_EQ(client.post("/v1/chat/completions", body(arguments)).status, 200);
    const Client::Reply reply = client.post("/apply-template", body(arguments));
    return reply.status == 200 ? reply.json()["prompt"].get<std::string>() : reply.body;
  };
  const char* const whole = "{{ c.function.arguments | tojson }}";
  const char* const members =
      "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% "
      "endfor %}";
  EXPECT_EQ(prompt(whole, R"({"a": 1})"), R"(x{"a": 1})");
  EXPECT_EQ(prompt(members, R"({"a": 1})"), "xa=1;");
  EXPECT_EQ(prompt(whole, R"({"a": )"), R"(x"{\"a\": ")");
  EXPECT_EQ(prompt(members, R"({"a": )"), R"(xarguments={"a": ;)");
  EXPECT_EQ(prompt(whole, ""), "x{}");
  EXPECT_EQ(prompt(whole, nullptr), "x{}");
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
  const std::string reasoning = free["reasoning_content"];
  const Json held = message({{"max_tokens", 40}, {"reasoning_budget", 5}});
  EXPECT_EQ(held["reasoning_content"], reasoning.substr(0, 5));
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
