#include "tessera/retrieve/retriever.h"

#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>

#include "tessera/base/testing.h"

namespace tessera::retrieve::retriever_test {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TemporaryFolder;

/// A BERT whose words are those of the tests.
std::string model_in(const TemporaryFolder& folder, const char* name = "model") {
  const fs::path path = folder / name;
  fs::copy(fs::path(TESSERA_SOURCE_DIR) / "tests/golden/families/bert/base", path);
  folder.write((fs::path(name) / "vocab.txt").string(),
               "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ncat\ndog\nsun\nmoon\nquery\n:\n");
  return path;
}

TEST(Retriever, FindsThePassagesOfNearestVectors) {
  const TemporaryFolder folder;
  const std::string model = model_in(folder);
  folder.write("a.txt", "cat dog\n\nsun\n");
  folder.write("b.txt", "moon moon\n");
  const Embedder embedder(model);
  const IndexOptions options{{.tokens = 2, .overlap = 0}};
  const Indexed made =
      make_index(model, embedder, {folder / "a.txt", folder / "b.txt"}, nullptr, options);
  EXPECT_EQ(made.kept, 0u);
  ASSERT_EQ(made.index.passages.size(), 3u);
  write_index(folder / "index", made.index);
  const Retriever retriever(folder / "index");
  const std::vector<Hit> hits = retriever.find("sun", 5);
  ASSERT_EQ(hits.size(), 3u);
  EXPECT_TRUE(hits[0].where.ends_with("a.txt:3")) << hits[0].where;
  EXPECT_EQ(hits[0].text, "sun\n");
  EXPECT_NEAR(hits[0].score, 1, 1e-5);
  EXPECT_GE(hits[1].score, hits[2].score);
  // the scores are cosines of what embed() gives
  const infer::LoadedModel loaded = infer::load_model(model);
  infer::EmbedOptions how = infer::embed_options_of(model);
  how.normalize = true;
  const Tensor v = infer::embed(loaded, {"sun", hits[2].text}, how).vectors_RD.to(at::kDouble);
  EXPECT_NEAR(hits[2].score, v[0].dot(v[1]).item<double>(), 1e-5);
  EXPECT_EQ(retriever.find("sun", 1).size(), 1u);
}

TEST(Retriever, VectorsThatAreNoNumbersAreNotFound) {
  const TemporaryFolder folder;
  const std::string model = model_in(folder);
  const Embedder embedder(model);
  std::string text;
  for (const char* word : {"cat", "dog", "sun", "moon"})
    for (int i = 0; i < 8; ++i) text += std::string(word) + "\n\n";
  Indexed made = make_index(model, embedder, {folder.write("a.txt", text)}, nullptr,
                            {{.tokens = 1, .overlap = 0}});
  const Tensor vectors = at::from_blob(const_cast<std::byte*>(made.index.vectors.data.data()),
                                       made.index.vectors.shape, at::kFloat);
  const int64_t n = vectors.size(0);
  ASSERT_GE(n, 4);
  for (int64_t i = 0; i < n; i += 2) vectors[i].fill_(NAN);
  write_index(folder / "some", made.index);
  const std::vector<Hit> hits = Retriever(folder / "some").find("sun", n);
  EXPECT_EQ(std::ssize(hits), n / 2);
  for (size_t i = 0; i + 1 < hits.size(); ++i) EXPECT_GE(hits[i].score, hits[i + 1].score);
  vectors.fill_(NAN);
  write_index(folder / "none", made.index);
  expect_error(ErrorKind::input, "no similarity of the question to a passage is a number",
               [&] { Retriever(folder / "none").find("sun", 3); });
}

TEST(Retriever, TextsThatAreKnownKeepTheirVectors) {
  const TemporaryFolder folder;
  const std::string model = model_in(folder);
  const Embedder embedder(model);
  const std::vector<std::string> files = {folder.write("a.txt", "cat dog\n\nsun\n"),
                                          folder.write("b.txt", "moon\n")};
  const IndexOptions options{{.tokens = 2, .overlap = 0}};
  const Indexed before = make_index(model, embedder, files, nullptr, options);
  // one changed, one as it was under another name beside it
  folder.write("a.txt", "dog\n");
  const std::string copy = folder.write("c.txt", "moon\n");
  const std::vector<std::string> now = {files[0], files[1], copy};
  const Indexed after = make_index(model, embedder, now, &before.index, options),
                anew = make_index(model, embedder, now, nullptr, options);
  EXPECT_EQ(after.kept, 2u);
  ASSERT_EQ(after.index.passages.size(), 3u);
  EXPECT_EQ(after.index.source(after.index.passages[2]), copy + ":1");
  EXPECT_TRUE(std::ranges::equal(after.index.vectors.data, anew.index.vectors.data));
  // cut otherwise, nothing is kept
  EXPECT_EQ(make_index(model, embedder, now, &before.index, {{.tokens = 3, .overlap = 0}}).kept,
            0u);
}

TEST(Retriever, AnotherModelIsRefused) {
  const TemporaryFolder folder;
  const std::string model = model_in(folder), other = model_in(folder, "other");
  const Embedder embedder(model);
  const std::vector<std::string> files = {folder.write("a.txt", "cat dog\n")};
  write_index(folder / "index",
              make_index(model, embedder, files, nullptr, {{.tokens = 2, .overlap = 0}}).index);
  // the same at another place
  EXPECT_EQ(Retriever(folder / "index", other).find("cat", 1).size(), 1u);
  folder.write("other/modules.json", R"([
      {"path": "", "type": "sentence_transformers.models.Transformer"},
      {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])");
  fs::create_directory(folder / "other/1_Pooling");
  folder.write("other/1_Pooling/config.json", R"({"pooling_mode_cls_token": true})");
  expect_error(ErrorKind::usage, "the embedding model is another one",
               [&] { Retriever(folder / "index", other); });
  expect_error(ErrorKind::input, "no text in 1 file", [&] {
    make_index(model, embedder, {folder.write("empty.txt", "\n")}, nullptr,
               {{.tokens = 2, .overlap = 0}});
  });
  expect_error(ErrorKind::usage, "the model reads", [&] {
    make_index(model, embedder, files, nullptr, {{.tokens = 9000, .overlap = 0}});
  });
}

}  // namespace
}  // namespace tessera::retrieve::retriever_test
