// What is read off a text at once, and translations, over loopback.
#include <cmath>
#include <set>

#include "tessera/format/safetensors.h"
#include "tessera/infer/encoders/classify.h"
#include "tessera/infer/encoders/judge_testing.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/loading/tensor_files.h"
#include "tessera/serve/serve_testing.h"
#include "tessera/text/tokenizer_files/vocab_file.h"

namespace tessera::serve::encoder_routes_test {
namespace {

/// An encoder of kWords with these heads.
infer::LoadedModel encoder(const std::string& heads) {
  const text::Tokenizer words = text::tokenizer_from_vocab(infer::kWords, "words");
  return {infer::tiny_model_of(
              fmt::format(R"({{"tessera": 1, "arch": "encoder", "vocab": {}, "d_model": 16,
                  "embed": {{"type": "token", "position": {{"type": "learned", "n_positions": 16}},
                             "n_types": 2}},
                  "norm": "layer_norm", "ffn": {{"type": "mlp", "d_hidden": 24}},
                  "layers": [{{"repeat": 2, "mixer": {{"type": "attention", "n_heads": 2}}}}],
                  "heads": [{}]}})",
                          words.vocab_size(), heads),
              3),
          words,
          {},
          {}};
}

/// A decoder beside an encoder whose vocabulary names two languages.
infer::LoadedModel translator() {
  const text::Tokenizer tokenizer = text::chat_tokenizer({"__de__", "__fr__"});
  return {infer::tiny_model_of(
              fmt::format(R"({{"tessera": 1, "arch": "encoder_decoder", "vocab": {}, "d_model": 16,
                  "start": 1, "head": "linear", "cross": {{"type": "cross_attention", "n_heads": 2}},
                  "ffn": {{"type": "mlp", "d_hidden": 24}},
                  "mixer": {{"type": "attention", "n_heads": 2, "position": "rope"}},
                  "stacks": {{"encoder": {{"layers": [{{"repeat": 2}}]}},
                              "decoder": {{"layers": [{{"repeat": 2}}]}}}}}})",
                          tokenizer.vocab_size()),
              7),
          tokenizer,
          {},
          {}};
}

/// A pair whose decoder predicts all tokens of an answer at once.
infer::LoadedModel filler() {
  const text::Tokenizer tokenizer = text::chat_tokenizer();
  return {infer::tiny_model_of(
              fmt::format(R"({{"tessera": 1, "arch": "encoder_decoder", "vocab": {}, "d_model": 16,
                  "mask": {}, "head": "linear", "cross": {{"type": "cross_attention", "n_heads": 2}},
                  "ffn": {{"type": "mlp", "d_hidden": 24}},
                  "mixer": {{"type": "attention", "n_heads": 2, "position": "rope"}},
                  "stacks": {{"encoder": {{"layers": [{{}}],
                                           "heads": [{{"type": "classifier", "n_labels": 9}},
                                                     {{"type": "pooler", "of": "mean"}}]}},
                              "decoder": {{"layers": [{{"repeat": 2}}]}}}}}})",
                          tokenizer.vocab_size() + 1, tokenizer.vocab_size()),
              7),
          tokenizer,
          {},
          {}};
}

infer::LoadedModel model_named(const std::string& name) {
  if (name == "classes")
    return encoder(
        R"({"type": "classifier", "n_labels": 3, "labels": ["bad", "so", "good"]}, "pooler")");
  if (name == "fits") return encoder(R"({"type": "classifier", "n_labels": 1}, "pooler")");
  if (name == "compares" || name == "ranks")
    return encoder(fmt::format(
        R"({{"type": "classifier", "n_labels": {}, "documents": 2, "act": "relu"}},
           {{"type": "pooler", "of": "mean", "dense": false, "act": "identity"}})",
        name == "ranks" ? 1 : 2));
  if (name == "words") return encoder(R"({"type": "classifier", "n_labels": 4, "of": "tokens"})");
  if (name == "mask") return encoder(R"({"type": "linear"})");
  if (name == "translator") return translator();
  if (name == "filler") return filler();
  return tiny_loaded(name);
}

ServiceOptions options_for(const std::vector<std::string>& names) {
  ServiceOptions options = options_of(names);
  options.models.load = [](const ModelEntry& entry) { return model_named(entry.path); };
  return options;
}

TEST(EncoderRoutes, ClassesOfTextsAndOfPairs) {
  Running server(options_for({"classes"}));
  const infer::LoadedModel alone = model_named("classes");
  Client client = server.client();
  const Json input = Json::array({"cat dog", Json::array({"cat", "sun moon"}), "sun"});
  const Json got = client.post("/v1/classify", {{"input", input}}).json();
  const auto want = infer::classify_texts(alone, {{"cat dog"}, {"cat", "sun moon"}, {"sun"}}, {});
  const std::vector<std::string> labels = {"bad", "so", "good"};
  ASSERT_EQ(got["data"].size(), 3u) << got.dump();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got["data"][i]["label"], labels[want[i].best]);
    EXPECT_EQ(got["data"][i]["num_classes"], 3);
    for (size_t c = 0; c < 3; ++c)
      EXPECT_NEAR(got["data"][i]["probs"][c].get<double>(), want[i].probabilities[c], 1e-6);
  }
  // a pair is not its texts one behind the other
  EXPECT_NE(client.post("/classify", {{"input", "cat sun moon"}}).json()["data"][0]["probs"],
            got["data"][1]["probs"]);
  EXPECT_EQ(got["usage"]["prompt_tokens"], 4 + 6 + 3);
  for (const Json& bad : {Json(3), Json::array(), Json::array({{"cat"}}),
                          Json::array({{"cat", "dog", "sun"}}), Json::array({7})}) {
    const Client::Reply reply = client.post("/v1/classify", {{"input", bad}});
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_TRUE(reply.json()["error"]["param"].get<std::string>().starts_with("input"));
  }
  EXPECT_EQ(client.post("/v1/classify", {{"input", ""}}).status, 400);
  EXPECT_EQ(client.post("/v1/classify", Json::object()).code(), "missing_parameter");
  std::string longer;
  for (int i = 0; i < 15; ++i) longer += "cat ";
  EXPECT_EQ(client.post("/v1/classify", {{"input", longer}}).code(), "context_length_exceeded");
}

TEST(EncoderRoutes, ClassesOfTokensWithTheirPlaces) {
  Running server(options_for({"words"}));
  const infer::LoadedModel alone = model_named("words");
  Client client = server.client();
  const std::string text = "Cat  sun moon";
  const Json got = client.post("/v1/classify", {{"input", text}}).json();
  const auto want = infer::classify_words(alone, {"Cat", "sun", "moon"}, {});
  const Json& tokens = got["data"][0]["tokens"];
  ASSERT_EQ(tokens.size(), 3u) << got.dump();
  const std::vector<std::pair<int, int>> places = {{0, 3}, {5, 8}, {9, 13}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(tokens[i]["label"], fmt::format("LABEL_{}", want[i].best));
    EXPECT_NEAR(tokens[i]["score"].get<double>(), want[i].probability, 1e-6);
    EXPECT_EQ(tokens[i]["start"], places[i].first);
    EXPECT_EQ(tokens[i]["end"], places[i].second);
  }
  const Json pairs = Json::array({Json::array({"cat", "dog"})});
  EXPECT_EQ(client.post("/v1/classify", {{"input", pairs}}).json()["error"]["param"], "input[0]");
}

TEST(EncoderRoutes, PairClassifiersRank) {
  Running server(options_for({"fits"}));
  const infer::LoadedModel alone = model_named("fits");
  Client client = server.client();
  const std::vector<std::string> documents = {"dog", "sun moon sun", "cat cat", "moon"};
  const Json body = {{"query", "cat"}, {"documents", documents}};
  std::vector<std::pair<double, size_t>> want;
  for (size_t i = 0; i < documents.size(); ++i)
    want.emplace_back(-infer::classify_texts(alone, {{"cat", documents[i]}}, {})[0].logits[0], i);
  std::stable_sort(want.begin(), want.end());
  const Json got = client.post("/v1/rerank", body).json();
  EXPECT_EQ(got["method"], "classifier");
  ASSERT_EQ(got["results"].size(), 4u) << got.dump();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(got["results"][i]["index"], want[i].second);
    EXPECT_EQ(got["results"][i]["document"]["text"], documents[want[i].second]);
    EXPECT_NEAR(got["results"][i]["relevance_score"].get<double>(),
                1 / (1 + std::exp(want[i].first)), 1e-6);
  }
  // Jina's and Cohere's form of the same
  Json objects = body;
  for (size_t i = 0; i < documents.size(); i += 2)
    objects["documents"][i] = {{"text", documents[i]}};
  EXPECT_EQ(client.post("/v1/rerank", objects).json()["results"], got["results"]);
  for (const Json& wrong : {Json{{"image", "a"}}, Json(3), Json{{"text", 3}}}) {
    objects["documents"][1] = wrong;
    const Json error = client.post("/v1/rerank", objects).json()["error"];
    EXPECT_TRUE(error["param"].get<std::string>().starts_with("documents[1]")) << error;
  }
  Json raw = body;
  raw["use_activation"] = false;
  raw["top_n"] = 2;
  raw["return_documents"] = false;
  const Json numbers = client.post("/rerank", raw).json()["results"];
  ASSERT_EQ(numbers.size(), 2u);
  EXPECT_NEAR(numbers[1]["relevance_score"].get<double>(), -want[1].first, 1e-6);
  EXPECT_FALSE(numbers[0].contains("document"));
  EXPECT_EQ(client.post("/v1/rerank", {{"query", ""}, {"documents", documents}}).status, 400);
  EXPECT_EQ(client.post("/v1/rerank", {{"query", "cat"}}).code(), "missing_parameter");
}

// both documents of a pair are computed alone, and in one piece of work
TEST(EncoderRoutes, PairsOfDocumentsAreComparedAndRanked) {
  Running server(options_for({"compares", "ranks"}));
  Client client = server.client();
  EXPECT_EQ(client.get("/v1/models/compares").json()["capabilities"], Json({"classify"}));
  const std::string longer = "cat dog sun moon query : cat dog sun moon";
  std::vector<infer::ClassifierPair> pairs;
  Json input = Json::array();
  for (int i = 0; i < 100; ++i) {
    pairs.push_back({i % 3 == 0 ? "cat" : longer, i % 2 == 0 ? "sun moon" : longer});
    input.push_back({pairs.back().text, *pairs.back().second});
  }
  const Json got = client.post("/v1/classify", {{"model", "compares"}, {"input", input}}).json();
  const auto want = infer::classify_texts(model_named("compares"), pairs, {});
  ASSERT_EQ(got["data"].size(), 100u) << got.dump();
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(got["data"][i]["index"], i);
    EXPECT_EQ(got["data"][i]["label"], fmt::format("LABEL_{}", want[i].best));
    for (size_t c = 0; c < 2; ++c)
      EXPECT_NEAR(got["data"][i]["probs"][c].get<double>(), want[i].probabilities[c], 1e-6);
  }
  input[1] = "cat";
  const Json error =
      client.post("/v1/classify", {{"model", "compares"}, {"input", input}}).json()["error"];
  EXPECT_EQ(error["param"], "input[1]");
  EXPECT_NE(error["message"].get<std::string>().find("expected a pair"), std::string::npos);
  const Json ranked =
      client
          .post("/v1/rerank",
                {{"model", "ranks"}, {"query", "cat"}, {"documents", {"dog sun", "moon", longer}}})
          .json();
  ASSERT_EQ(ranked["results"].size(), 3u) << ranked.dump();
  const infer::LoadedModel ranks = model_named("ranks");
  for (const Json& one : ranked["results"]) {
    const std::string text = one["document"]["text"];
    const double logit = infer::classify_texts(ranks, {{"cat", text}}, {})[0].logits[0];
    EXPECT_NEAR(one["relevance_score"].get<double>(), 1 / (1 + std::exp(-logit)), 1e-6);
  }
  // known once the model is loaded
  EXPECT_EQ(client.get("/v1/models/ranks").json()["capabilities"], Json({"rerank", "classify"}));
}

// llama.cpp's server adds none to content unless it is asked, vLLM's does to prompt
TEST(EncoderRoutes, SpecialTokensAroundATextAreThoseOfTheApiThatIsSpoken) {
  Running server(options_for({"fits"}));
  Client client = server.client();
  const auto count = [&](const Json& body) {
    return client.post("/tokenize", body).json()["count"];
  };
  EXPECT_EQ(count({{"content", "cat"}}), 1);
  EXPECT_EQ(count({{"content", "cat"}, {"add_special", true}}), 3);
  EXPECT_EQ(count({{"prompt", "cat"}}), 3);
  EXPECT_EQ(count({{"prompt", "cat"}, {"add_special_tokens", false}}), 1);
}

// of a folder, as people have them
TEST(EncoderRoutes, ACrossEncoderOfAFolderRanks) {
  const test::TemporaryFolder folder;
  const std::string path = infer::cross_encoder(folder);
  ServiceOptions options;
  options.server.port = 0;
  options.entries = {{.id = "judge", .path = path}};
  Running server(options);
  Client client = server.client();
  EXPECT_EQ(client.get("/v1/models/judge").json()["capabilities"], Json({"rerank", "classify"}));
  const infer::LoadedModel alone = infer::load_model(path);
  const Json got =
      client.post("/v1/rerank", {{"query", "cat"}, {"documents", {"dog sun", "moon"}}}).json();
  for (const Json& one : got["results"]) {
    const std::string text = one["document"]["text"];
    const double logit = infer::classify_texts(alone, {{"cat", text}}, {})[0].logits[0];
    EXPECT_NEAR(one["relevance_score"].get<double>(), 1 / (1 + std::exp(-logit)), 1e-6);
  }
}

TEST(EncoderRoutes, MasksAreFilled) {
  Running server(options_for({"mask"}));
  const infer::LoadedModel alone = model_named("mask");
  Client client = server.client();
  const std::string text = "cat [MASK] sun [MASK]";
  const Json got = client.post("/v1/fill-mask", {{"input", text}, {"top_k", 3}}).json();
  ASSERT_EQ(got["data"][0]["masks"].size(), 2u) << got.dump();
  const auto ids = alone.tokenizer->encode(text, {.parse_special = true});
  const std::vector<int64_t> row(ids.begin(), ids.end());
  const at::NoGradGuard no_gradients;
  const Tensor p = at::softmax(
      alone.model.logits(alone.model.hidden(nn::Batch::of(std::vector<std::vector<int64_t>>{row})))
          .to(at::kDouble),
      -1);
  for (size_t m = 0; m < 2; ++m) {
    const auto [best, which] = p[static_cast<int64_t>(m == 0 ? 2 : 4)].topk(3);
    for (int64_t k = 0; k < 3; ++k) {
      const Json& one = got["data"][0]["masks"][m][static_cast<size_t>(k)];
      EXPECT_EQ(one["token"], which[k].item<int64_t>());
      EXPECT_NEAR(one["score"].get<double>(), best[k].item<double>(), 1e-6);
      EXPECT_EQ(one["token_str"], std::string(alone.tokenizer->token(which[k].item<int32_t>())));
    }
  }
  const Json chosen =
      client.post("/v1/fill-mask", {{"input", "the [MASK]"}, {"targets", {"dog", "moon"}}})
          .json()["data"][0]["masks"][0];
  ASSERT_EQ(chosen.size(), 2u);
  std::set<std::string> said;
  for (const Json& one : chosen) said.insert(one["token_str"].get<std::string>());
  EXPECT_EQ(said, (std::set<std::string>{"dog", "moon"}));
  EXPECT_EQ(client.post("/v1/fill-mask", {{"input", "cat"}}).code(), "no_mask");
  EXPECT_EQ(client.post("/v1/fill-mask", {{"input", "[MASK]"}, {"targets", {"cat dog"}}})
                .json()["error"]["param"],
            "targets");
}

TEST(EncoderRoutes, TranslationsEndAtTheStopStringsOfTheModel) {
  const infer::LoadedModel alone = translator();
  const auto ids = alone.tokenizer->encode("hello");
  infer::GenerateOptions options;
  options.max_new_tokens = 9;
  options.stop_ids = infer::eos_ids(alone);
  const std::string whole = infer::generate(alone.model, &*alone.tokenizer,
                                            {std::vector<int64_t>(ids.begin(), ids.end())}, options)
                                .rows[0]
                                .text;
  ASSERT_GE(whole.size(), 4u);
  const std::string stop = whole.substr(2, 2);
  ServiceOptions service = options_for({"translator"});
  service.models.load = [&](const ModelEntry&) {
    infer::LoadedModel model = translator();
    model.generation.stop_strings = {stop};
    return model;
  };
  Running server(std::move(service));
  const Json got =
      server.client().post("/v1/translate", {{"input", "hello"}, {"max_tokens", 9}}).json();
  EXPECT_EQ(got["data"][0]["text"], whole.substr(0, whole.find(stop))) << got.dump();
  EXPECT_EQ(got["data"][0]["finish_reason"], "stop");
}

TEST(EncoderRoutes, TranslationsHaveALimitOfTheirOwn) {
  Running server(options_for({"translator"}));  // which never ends this one
  const Json got = server.client().post("/v1/translate", {{"input", "hello"}}).json();
  EXPECT_EQ(got["usage"]["completion_tokens"], 256) << got.dump();
  EXPECT_EQ(got["data"][0]["finish_reason"], "length");
}

TEST(EncoderRoutes, Translations) {
  Running server(options_for({"translator"}));
  const infer::LoadedModel alone = model_named("translator");
  Client client = server.client();
  const auto source_of = [&](const std::string& text) {
    const auto ids = alone.tokenizer->encode(text);
    return std::vector<int64_t>(ids.begin(), ids.end());
  };
  infer::GenerateOptions options;
  options.max_new_tokens = 9;
  options.stop_ids = infer::eos_ids(alone);
  const infer::Generations want = infer::generate(alone.model, &*alone.tokenizer,
                                                  {source_of("hello"), source_of("a_b")}, options);
  const Json got =
      client.post("/v1/translate", {{"input", {"hello", "a_b"}}, {"max_tokens", 9}}).json();
  ASSERT_EQ(got["data"].size(), 2u) << got.dump();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(got["data"][i]["text"], want.rows[i].text);
    EXPECT_EQ(got["data"][i]["finish_reason"], want.rows[i].finish_reason);
  }
  EXPECT_EQ(got["usage"]["prompt_tokens"], 8);
  // a language begins the answer
  options.forced_begin = {*alone.tokenizer->id("__de__")};
  const infer::Generations german =
      infer::generate(alone.model, &*alone.tokenizer, {source_of("hello")}, options);
  EXPECT_EQ(
      client.post("/v1/translate", {{"input", "hello"}, {"target_lang", "de"}, {"max_tokens", 9}})
          .json()["data"][0]["text"],
      german.rows[0].text);
  const Client::Reply unknown =
      client.post("/v1/translate", {{"input", "hello"}, {"target_lang", "xx"}});
  EXPECT_EQ(unknown.code(), "unknown_language");
  EXPECT_NE(unknown.body.find("de, fr"), std::string::npos) << unknown.body;
  EXPECT_EQ(
      client.post("/v1/translate", {{"input", "hello"}, {"beams", 3}, {"max_tokens", 5}}).status,
      200);
  EXPECT_EQ(client.post("/v1/translate", {{"text", "hello"}}).code(), "unknown_parameter");
  // who leaves is not worked for
  Client leaver = server.client();
  const std::string body = Json{{"input", "hello"}, {"max_tokens", 1'000'000}}.dump();
  leaver.send(
      fmt::format("POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                  "application/json\r\nContent-Length: {}\r\n\r\n{}",
                  body.size(), body));
  EXPECT_TRUE(
      server.comes([&] { return server.client().get("/requests").json()["running"].size() == 1; }));
  leaver.close();
  EXPECT_TRUE(server.comes([&] {
    return server.client()
               .get("/metrics")
               .body.find("tessera_generations_total{finish=\"cancelled\"} 1\n") !=
           std::string::npos;
  }));
}

TEST(EncoderRoutes, AnswersWhoseTokensArePredictedAtOnce) {
  Running server(options_for({"filler"}));
  const infer::LoadedModel alone = model_named("filler");
  Client client = server.client();
  std::vector<std::vector<int64_t>> sources;
  for (const char* text : {"hello", "a_b"}) {
    const auto ids = alone.tokenizer->encode(text);
    sources.emplace_back(ids.begin(), ids.end());
  }
  infer::GenerateOptions options;
  options.mask_predict = infer::MaskPredictOptions{3, 2};
  const infer::Generations want = infer::generate(alone.model, &*alone.tokenizer, sources, options);
  const Json got =
      client
          .post("/v1/translate",
                {{"input", {"hello", "a_b"}}, {"iterations", 3}, {"length_candidates", 2}})
          .json();
  ASSERT_EQ(got["data"].size(), 2u) << got.dump();
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(got["data"][i]["text"], want.rows[i].text);
  EXPECT_EQ(client.post("/v1/translate", {{"input", "hello"}}).status, 200);
  const Client::Reply beams = client.post("/v1/translate", {{"input", "hello"}, {"beams", 3}});
  EXPECT_EQ(beams.status, 400) << beams.body;
  EXPECT_NE(beams.body.find("a search with beams for a model that predicts"), std::string::npos)
      << beams.body;
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/fill-mask"}) {
    const Client::Reply reply = client.post(
        path,
        {{"prompt", "a"}, {"input", "a"}, {"messages", {{{"role", "user"}, {"content", "a"}}}}});
    EXPECT_GE(reply.status, 400) << path;
  }
  EXPECT_EQ(client.post("/v1/completions", {{"prompt", "a"}}).code(), "model_capability");
  // a model that writes from left to right has no iterations
  Running left_to_right(options_for({"translator"}));
  EXPECT_EQ(
      left_to_right.client().post("/v1/translate", {{"input", "hello"}, {"iterations", 3}}).status,
      400);
}

// PEFT's own numbers, with the adapter and without
TEST(EncoderRoutes, AdaptersByName) {
  const std::string golden = TESSERA_SOURCE_DIR "/tests/golden/";
  ServiceOptions options = options_of({});
  options.entries = {{.id = "base", .path = golden + "families/llama/base"},
                     {.id = "poet",
                      .path = golden + "families/llama/base",
                      .adapters = {golden + "adapters/llama"},
                      .of = "base"}};
  options.models.load = [](const ModelEntry& entry) {
    infer::LoadedModel loaded = infer::load_model(entry.path, {}, entry.adapters);
    loaded.tokenizer = text::chat_tokenizer();
    return loaded;
  };
  Running server(options);
  Client client = server.client();
  EXPECT_EQ(client.get("/v1/models/poet").json()["parent"], "base");
  const format::TensorFile file =
      format::open_safetensors(golden + "adapters/llama/io.safetensors");
  const auto tensor = [&](const char* name) { return infer::tensor_or_undefined(file, name)[0]; };
  const Tensor ids = tensor("input_ids").to(at::kLong).contiguous();
  const std::vector<int64_t> prompt(ids.const_data_ptr<int64_t>(),
                                    ids.const_data_ptr<int64_t>() + ids.numel());
  for (const auto& [name, numbers] : {std::pair{"base", "base"}, {"poet", "logits"}}) {
    const Tensor log_p = at::log_softmax(tensor(numbers).to(at::kDouble), -1);
    const Json got = client
                         .post("/v1/completions", {{"model", name},
                                                   {"prompt", prompt},
                                                   {"max_tokens", 0},
                                                   {"echo", true},
                                                   {"logprobs", 0}})
                         .json();
    ASSERT_TRUE(got.contains("choices")) << got.dump();
    EXPECT_EQ(got["model"], name);
    const Json& said = got["choices"][0]["logprobs"]["token_logprobs"];
    ASSERT_EQ(said.size(), prompt.size());
    for (size_t i = 1; i < prompt.size(); ++i)
      EXPECT_NEAR(said[i].get<double>(),
                  log_p[static_cast<int64_t>(i) - 1][prompt[i]].item<double>(), 1e-4);
  }
  EXPECT_EQ(client.post("/v1/completions", {{"model", "pet"}, {"prompt", "a"}}).code(),
            "model_not_found");
}

TEST(EncoderRoutes, WhatAModelCannotIsSaid) {
  Running server(options_for({"attention", "mask", "classes"}));
  Client client = server.client();
  const auto refused = [&](const char* path, Json body, const char* can) {
    const Client::Reply reply = client.post(path, body);
    EXPECT_EQ(reply.status, 400) << path << reply.body;
    EXPECT_EQ(reply.code(), "model_capability");
    EXPECT_NE(reply.body.find(can), std::string::npos) << reply.body;
  };
  refused("/v1/classify", {{"input", "a"}}, "supported: chat, completion");
  refused("/v1/fill-mask", {{"input", "a"}}, "supported: chat, completion");
  refused("/v1/translate", {{"input", "a"}}, "supported: chat, completion");
  refused("/v1/embeddings", {{"input", "a"}}, "--pooling");
  refused("/v1/rerank", {{"query", "a"}, {"documents", {"b"}}}, "supported: chat, completion");
  refused("/infill", {{"input_prefix", "a"}}, "fill-in-the-middle");
  refused("/v1/completions", {{"model", "mask"}, {"prompt", "a"}}, "fill_mask");
  // three numbers do not say how well two texts fit
  refused("/v1/rerank", {{"model", "classes"}, {"query", "a"}, {"documents", {"b"}}}, "classify");
}

// Matryoshka truncation: the first numbers, of length 1 again.
TEST(EncoderRoutes, VectorsHaveTheDimensionsThatAreAskedFor) {
  ServiceOptions options = options_for({"attention"});
  options.models.pooling = "mean";
  Running server(options);
  Client client = server.client();
  const auto vector = [&](const Json& more) {
    Json body = {{"input", "cat"}};
    body.update(more);
    const Client::Reply reply = client.post("/v1/embeddings", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["data"][0]["embedding"].get<std::vector<double>>();
  };
  const auto whole = vector(Json::object()), cut = vector({{"dimensions", 5}});
  ASSERT_EQ(cut.size(), 5U);
  double length = 0;
  for (size_t i = 0; i < cut.size(); ++i) length += whole[i] * whole[i];
  for (size_t i = 0; i < cut.size(); ++i) EXPECT_NEAR(cut[i], whole[i] / std::sqrt(length), 1e-6);
  EXPECT_EQ(vector({{"dimensions", whole.size()}}), whole);
  const Client::Reply reply =
      client.post("/v1/embeddings", {{"input", "cat"}, {"dimensions", whole.size() + 1}});
  EXPECT_EQ(reply.status, 400) << reply.body;
  EXPECT_EQ(reply.json()["error"]["param"], "dimensions");
}

// whatever is asked for, it is given up in time
TEST(EncoderRoutes, DeadlinesHoldForAll) {
  ServiceOptions options =
      options_for({"classes", "fits", "words", "mask", "translator", "attention"});
  options.server.limits.deadline = std::chrono::milliseconds(0);
  options.models.pooling = "mean";
  Running server(options);
  Client client = server.client();
  const Json texts = {"cat", "dog"};
  for (const auto& [path, body] : std::vector<std::pair<std::string, Json>>{
           {"/v1/classify", {{"input", texts}}},
           {"/v1/classify", {{"model", "words"}, {"input", texts}}},
           {"/v1/rerank", {{"model", "fits"}, {"query", "sun"}, {"documents", texts}}},
           {"/v1/rerank", {{"model", "attention"}, {"query", "sun"}, {"documents", texts}}},
           {"/v1/fill-mask", {{"model", "mask"}, {"input", "[MASK]"}}},
           {"/v1/embeddings", {{"model", "attention"}, {"input", texts}}},
           {"/v1/translate", {{"model", "translator"}, {"input", texts}}},
           {"/v1/completions", {{"model", "attention"}, {"prompt", "a"}}},
           {"/v1/chat/completions", {{"model", "attention"}, {"messages", user("a")}}}}) {
    const Client::Reply reply = client.post(path, body);
    EXPECT_EQ(reply.status, 504) << path << reply.body;
    EXPECT_EQ(reply.code(), "deadline_exceeded") << path;
  }
}

}  // namespace
}  // namespace tessera::serve::encoder_routes_test
