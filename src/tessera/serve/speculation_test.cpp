// Guesses of a server: they bear on speed alone, whoever else is served.
#include "tessera/serve/serve_testing.h"

namespace tessera::serve::speculation_test {
namespace {

std::vector<Json> mixed_bodies() {
  std::vector<Json> bodies;
  for (int i = 0; i < 12; ++i) {
    Json body = {{"prompt", i % 2 == 0 ? "abcabcabcabc" : "hello_hello_hello_"},
                 {"max_tokens", 10 + 3 * i},
                 {"seed", i},
                 {"temperature", i % 3 == 0 ? 0 : 0.7},
                 {"ignore_eos", true}};
    if (i % 4 == 1) body["grammar"] = "root ::= [a-d]+";
    if (i % 5 == 2) body["repetition_penalty"] = 1.1;
    bodies.push_back(std::move(body));
  }
  return bodies;
}

std::vector<std::string> texts_of(Running& server, const std::string& model, bool at_once) {
  std::vector<Json> bodies = mixed_bodies();
  std::vector<std::string> texts(bodies.size());
  const auto ask = [&](size_t i) {
    bodies[i]["model"] = model;
    const Json got = server.client().post("/v1/completions", bodies[i]).json();
    texts[i] = got.contains("choices") ? got["choices"][0]["text"].get<std::string>() : got.dump();
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < bodies.size(); ++i) {
    if (at_once)
      threads.emplace_back(ask, i);
    else
      ask(i);
  }
  for (std::thread& thread : threads) thread.join();
  return texts;
}

TEST(ServedDrafts, SayWhatIsSaidWithoutThem) {
  const std::vector<std::string> kinds = {"attention", "mamba2", "rwkv7", "hybrid"};
  std::map<std::string, std::vector<std::string>> plain;
  {
    Running server(options_of(kinds));
    for (const std::string& kind : kinds) plain[kind] = texts_of(server, kind, false);
    EXPECT_EQ(server.metrics().value("draft_tokens_total"), 0);
  }
  ServiceOptions options = options_of(kinds);
  options.models.speculation = {.lookup = 3, .draft_tokens = 4};
  Running server(options);
  for (const std::string& kind : kinds) {
    const double before = server.metrics().value("draft_accepted_tokens_total");
    EXPECT_EQ(texts_of(server, kind, true), plain[kind]) << kind;
    EXPECT_GT(server.metrics().value("draft_accepted_tokens_total"), before) << kind;
  }
  EXPECT_GT(server.metrics().value("draft_tokens_total"),
            server.metrics().value("draft_accepted_tokens_total"));
}

TEST(ServedDrafts, OfADraftAreCountedInTimings) {
  const infer::LoadedModel draft = tiny_loaded("attention");  // the same model: always right
  ServiceOptions options = options_of({"attention", "mamba2"});
  options.models.speculation = {.draft = &draft.model, .draft_tokens = 3};
  Running server(options);
  const Json body = {
      {"prompt", "hello"}, {"max_tokens", 17}, {"temperature", 0}, {"ignore_eos", true}};
  const Json timings = server.client().post("/v1/completions", body).json()["timings"];
  EXPECT_EQ(timings["draft_n"], 12);
  EXPECT_EQ(timings["draft_n_accepted"], 12);
  // a row's memory is that of its draft too
  ModelOptions without = options.models;
  without.speculation = {};
  const ModelEntry entry{.id = "attention", .path = "attention"};
  EXPECT_EQ(ServedModel(entry, tiny_loaded("attention"), options.models).state_bytes(100, 0),
            2 * ServedModel(entry, tiny_loaded("attention"), without).state_bytes(100, 0));
  const Json props = server.client().get("/props").json();
  EXPECT_TRUE(props["models"][0]["guesses"].get<bool>());
}

TEST(ServedDrafts, APredictionIsLookedUp) {
  ServiceOptions options = options_of({"attention"});
  Json body = {{"prompt", "hello"},
               {"max_tokens", 32},
               {"temperature", 0.9},
               {"seed", 4},
               {"ignore_eos", true}};
  const Json plain = Running(options).client().post("/v1/completions", body).json();
  const std::string text = plain["choices"][0]["text"];
  EXPECT_FALSE(plain["timings"].contains("draft_n"));
  options.models.speculation = {.lookup = 4, .draft_tokens = 4};
  Running server(options);
  Client client = server.client();
  const auto accepted = [&](const Json& prediction) {
    body["prediction"] = prediction;
    const Json got = client.post("/v1/completions", body).json();
    EXPECT_EQ(got["choices"][0]["text"], text) << got.dump();
    return got["timings"].value("draft_n_accepted", 0);
  };
  const int without = accepted(nullptr);
  const int with = accepted({{"type", "content"}, {"content", text}});
  EXPECT_GT(with, without + 5);
  EXPECT_EQ(accepted({{"type", "content"},
                      {"content", Json::array({{{"type", "text"}, {"text", text}}})}}),
            with);
  EXPECT_LE(accepted({{"type", "content"}, {"content", "zzzzzzzz"}}), with);
  for (const Json& wrong :
       {Json("hello"), Json{{"type", "content"}}, Json{{"type", "text"}, {"content", "a"}},
        Json{{"type", "content"}, {"content", 5}}}) {
    body["prediction"] = wrong;
    EXPECT_EQ(client.post("/v1/completions", body).status, 400) << wrong;
  }
}

TEST(ServedDrafts, TheFirstModelMustSuitThem) {
  const infer::LoadedModel draft = tiny_loaded("attention");
  ServiceOptions options = options_of({"attention", "other"});
  options.models.load = [](const ModelEntry& entry) {
    infer::LoadedModel loaded = tiny_loaded("attention");
    if (entry.path == "other")  // another vocabulary
      loaded.model =
          infer::tiny_model(infer::tiny_layers()[0].second, 7, loaded.tokenizer->vocab_size() + 8);
    return loaded;
  };
  options.models.speculation = {.draft = &draft.model};
  {
    Running server(options);
    Client client = server.client();
    const Json body = {{"model", "other"}, {"prompt", "hello"}, {"max_tokens", 4}};
    EXPECT_EQ(client.post("/v1/completions", body).status, 200);
    const Json models = client.get("/props").json()["models"];
    EXPECT_FALSE(models[1]["guesses"].get<bool>());
    EXPECT_NE(models[1]["no_guesses"].get<std::string>().find("they must be the same"),
              std::string::npos);
    EXPECT_EQ(models[1]["speculation_unavailable"], models[1]["no_guesses"]);
  }
  std::swap(options.entries[0], options.entries[1]);
  EXPECT_NE(test::error_of(ErrorKind::usage, [&] { Running server(options); })
                .find("they must be the same"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::serve::speculation_test
