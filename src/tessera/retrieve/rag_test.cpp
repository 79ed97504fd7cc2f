#include "tessera/retrieve/rag.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/infer/encoders/classify.h"
#include "tessera/infer/encoders/judge_testing.h"

namespace tessera::retrieve::rag_test {
namespace {

using infer::bert_with_words;
using test::TemporaryFolder;

std::string index_of(const TemporaryFolder& folder, const std::string& model) {
  const Embedder embedder(model);
  const std::vector<std::string> files = {folder.write("a.txt", "cat dog\n\nsun\n"),
                                          folder.write("b.txt", "moon moon\n\ndog\n")};
  write_index(folder / "index",
              make_index(model, embedder, files, nullptr, {{.tokens = 2, .overlap = 0}}).index);
  return folder / "index";
}

TEST(RagPipeline, AQuestionStandsBehindItsPassages) {
  const TemporaryFolder folder;
  const std::string model = bert_with_words(folder, "base");
  const RagPipeline asker({.index = index_of(folder, model), .model = "", .reranker = ""});
  const Embedder embedder(model);
  const AugmentedPrompt asked =
      asker.ask("sun", embedder.tokenizer(), {.passages = 2, .tokens = 4096});
  ASSERT_EQ(asked.hits.size(), 2u);
  EXPECT_TRUE(asked.prompt.ends_with("\nQuestion: sun"));
  const spec::Json sources = asked.sources("it is so [2]");
  ASSERT_EQ(sources.size(), 2u);
  EXPECT_EQ(sources[0]["source"], asked.hits[0].where);
  EXPECT_EQ(sources[0]["number"], 1);
  EXPECT_FALSE(sources[0]["named"].get<bool>());
  EXPECT_TRUE(sources[1]["named"].get<bool>());
  // without room there is the question alone
  EXPECT_EQ(asker.ask("sun", embedder.tokenizer(), {.passages = 2, .tokens = 1}).prompt, "sun");
}

TEST(RagPipeline, ARerankerChoosesAmongMore) {
  const TemporaryFolder folder;
  const std::string model = bert_with_words(folder, "base");
  const std::string index = index_of(folder, model);
  const std::string judge = infer::cross_encoder(folder);
  const infer::LoadedModel loaded = infer::load_model(judge);
  const RagPipeline asker({.index = index, .model = "", .reranker = judge});
  const Embedder embedder(model);
  const AugmentedPrompt asked =
      asker.ask("cat", embedder.tokenizer(), {.passages = 2, .tokens = 4096});
  std::vector<std::pair<double, std::string>> want;
  for (const Hit& hit : Retriever(index).find("cat", 8)) {
    const auto judged = infer::classify_texts(loaded, {{"cat", hit.text}}, {});
    want.emplace_back(-1 / (1 + std::exp(-judged[0].logits.at(0))), hit.where);
  }
  ASSERT_EQ(want.size(), 4u);
  std::stable_sort(want.begin(), want.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  ASSERT_EQ(asked.hits.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(asked.hits[i].where, want[i].second);
    EXPECT_DOUBLE_EQ(asked.hits[i].score, -want[i].first);
  }
  test::expect_error(ErrorKind::usage, "expected a cross-encoder", [&] {
    RagPipeline(
        {.index = index, .model = model, .reranker = bert_with_words(folder, "classifier")});
  });
}

}  // namespace
}  // namespace tessera::retrieve::rag_test
