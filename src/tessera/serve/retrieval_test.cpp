// Passages before questions, over loopback.
#include "tessera/infer/encoders/judge_testing.h"
#include "tessera/serve/serve_testing.h"

namespace tessera::serve::retrieval_test {
namespace {

/// An index of two files by a BERT of six words.
std::string index_of(const test::TemporaryFolder& folder) {
  const std::string model = infer::bert_with_words(folder, "base");
  const retrieve::Embedder embedder(model);
  const std::vector<std::string> files = {folder.write("a.txt", "cat dog\n\nsun\n"),
                                          folder.write("b.txt", "moon moon\n")};
  retrieve::write_index(
      folder / "index",
      retrieve::make_index(model, embedder, files, nullptr, {{.tokens = 2, .overlap = 0}}).index);
  return folder / "index";
}

retrieve::RagPipeline asker_of(const std::string& index) {
  return retrieve::RagPipeline({.index = index, .model = "", .reranker = ""});
}

ServiceOptions options_with(const std::string& index) {
  ServiceOptions options = options_of({"attention"});
  options.retrieve.index = index;
  options.room = {.passages = 2, .tokens = 4096};
  return options;
}

TEST(Retrieval, ChatsHavePassagesBeforeTheirQuestion) {
  const test::TemporaryFolder folder;
  const std::string index = index_of(folder);
  Running server(options_with(index));
  Client client = server.client();
  const Json chat = {{"messages", user("sun")}, {"max_tokens", 8}, {"seed", 3}};
  const Json got = client.post("/v1/chat/completions", chat).json();
  ASSERT_TRUE(got.contains("choices")) << got.dump();
  // the answer is that to the question behind its passages
  const retrieve::RagPipeline asker = asker_of(index);
  const text::Tokenizer tokenizer = text::chat_tokenizer();
  const retrieve::AugmentedPrompt asked =
      asker.ask("sun", tokenizer, {.passages = 2, .tokens = 4096});
  ASSERT_EQ(asked.hits.size(), 2u);
  const Json by_hand = client
                           .post("/v1/chat/completions", {{"messages", user(asked.prompt)},
                                                          {"max_tokens", 8},
                                                          {"seed", 3},
                                                          {"retrieve", false}})
                           .json();
  const Json& choice = got["choices"][0];
  EXPECT_EQ(choice["message"], by_hand["choices"][0]["message"]);
  EXPECT_EQ(got["usage"]["prompt_tokens"], by_hand["usage"]["prompt_tokens"]);
  EXPECT_FALSE(by_hand["choices"][0].contains("sources"));
  EXPECT_EQ(choice["sources"], asked.sources(choice["message"]["content"].get<std::string>()));
  EXPECT_TRUE(choice["sources"][0]["source"].get<std::string>().ends_with("a.txt:3"));
  // streamed, the last piece of a choice has them
  Json streamed = chat;
  streamed["stream"] = true;
  const Events events(client.post("/v1/chat/completions", streamed).body);
  EXPECT_TRUE(events.done);
  EXPECT_EQ(events.text(), choice["message"]["content"]);
  EXPECT_EQ(events.all.back()["choices"][0]["sources"], choice["sources"]);
  // as many as a request says
  Json one = chat;
  one["retrieve"] = {{"passages", 1}};
  EXPECT_EQ(client.post("/v1/chat/completions", one).json()["choices"][0]["sources"].size(), 1u);
  one["retrieve"] = {{"passages", 0}};
  EXPECT_EQ(client.post("/v1/chat/completions", one).json()["error"]["param"], "retrieve.passages");
  one["retrieve"] = {{"passage", 1}};
  EXPECT_EQ(client.post("/v1/chat/completions", one).code(), "unknown_parameter");
  // an answer that goes on is no question
  Json going = chat;
  going["messages"].push_back({{"role", "assistant"}, {"content", "the"}});
  EXPECT_FALSE(client.post("/v1/chat/completions", going).json()["choices"][0].contains("sources"));
  going["retrieve"] = true;
  EXPECT_EQ(client.post("/v1/chat/completions", going).status, 400);
}

TEST(Retrieval, CompletionsHaveThemOnDemand) {
  const test::TemporaryFolder folder;
  const std::string index = index_of(folder);
  Running server(options_with(index));
  Client client = server.client();
  Json body = {{"prompt", {"sun", "moon"}}, {"max_tokens", 4}, {"n", 2}, {"seed", 3}};
  EXPECT_FALSE(client.post("/v1/completions", body).json()["choices"][0].contains("sources"));
  body["retrieve"] = true;
  const Json got = client.post("/v1/completions", body).json();
  ASSERT_EQ(got["choices"].size(), 4u) << got.dump();
  const retrieve::RagPipeline asker = asker_of(index);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(
        got["choices"][i]["sources"],
        asker.ask(i < 2 ? "sun" : "moon", text::chat_tokenizer(), {.passages = 2, .tokens = 4096})
            .sources(got["choices"][i]["text"].get<std::string>()));
  EXPECT_NE(got["choices"][0]["sources"], got["choices"][2]["sources"]);
  EXPECT_EQ(client.post("/v1/completions", {{"prompt", {3, 4}}, {"retrieve", true}}).status, 400);
  body["echo"] = true;
  EXPECT_EQ(client.post("/v1/completions", body).json()["error"]["param"], "echo");
}

TEST(Retrieval, WithoutAnIndexItIsRefused) {
  Running server(options_of({"attention"}));
  const Client::Reply reply =
      server.client().post("/v1/chat/completions", {{"messages", user("sun")}, {"retrieve", true}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["param"], "retrieve");
  EXPECT_NE(reply.body.find("--retrieve"), std::string::npos);
  test::expect_error(ErrorKind::file, "no-index", [] { Service s(options_with("no-index")); });
}

}  // namespace
}  // namespace tessera::serve::retrieval_test
