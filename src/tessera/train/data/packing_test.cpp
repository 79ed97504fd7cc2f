#include "tessera/train/data/packing.h"

#include <array>
#include <numeric>
#include <set>

#include "tessera/train/train_testing.h"

namespace tessera::train::packing_test {
namespace {

TokenSplit split_of(const TemporaryFolder& folder,
                    const std::vector<std::vector<int32_t>>& documents,
                    int64_t vocab = 100'000) {
  TokenWriter writer(folder / "t.tokens", vocab);
  for (const auto& document : documents) {
    writer.append(document);
    writer.end_document(static_cast<int64_t>(document.size()));
  }
  writer.finish();
  return TokenSplit::open(folder / "t.tokens");
}

TEST(Permuted, IsAPermutationOfAnySize) {
  for (const int64_t n : {1, 2, 3, 7, 16, 17, 63, 64, 65, 1000}) {
    std::set<int64_t> images;
    for (int64_t i = 0; i < n; ++i) images.insert(permuted(i, n, RandomKey(5)));
    EXPECT_EQ(static_cast<int64_t>(images.size()), n);
    EXPECT_EQ(*images.begin(), 0);
    EXPECT_EQ(*images.rbegin(), n - 1);
  }
}

TEST(Permuted, ShufflesAndDependsOnTheKey) {
  int fixed = 0, equal = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    fixed += permuted(i, 1000, RandomKey(1)) == i;
    equal += permuted(i, 1000, RandomKey(1)) == permuted(i, 1000, RandomKey(2));
  }
  EXPECT_LT(fixed, 10);  // 1 expected
  EXPECT_LT(equal, 10);
}

TEST(SampleOrder, EveryEpochCoversItsWindowsOnceWithinTheText) {
  for (const int64_t tokens : {2, 3, 16, 17, 18, 31, 32, 33, 34, 1000}) {
    const SampleOrder order(tokens, 16, 9);
    ASSERT_GE(order.per_epoch(), 1);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> begins;
      for (int64_t i = 0; i < order.per_epoch(); ++i) {
        const Window window = order.at(epoch * order.per_epoch() + i);
        EXPECT_EQ(window.length, std::min<int64_t>(16, tokens - 1));
        EXPECT_GE(window.begin, 0);
        EXPECT_LE(window.begin + window.length + 1, tokens);
        begins.insert(window.begin);
      }
      EXPECT_EQ(static_cast<int64_t>(begins.size()), order.per_epoch());
      EXPECT_EQ((*begins.rbegin() - *begins.begin()) / 16 + 1, order.per_epoch());
    }
  }
  const SampleOrder order(1000, 16, 9);
  EXPECT_NE(order.at(0).begin % 16, order.at(order.per_epoch()).begin % 16)
      << "epochs share their cuts";
}

TEST(StreamOrder, StreamsAreRunsOfNeighbouringWindows) {
  const std::vector<std::array<int64_t, 3>> settings{{1000, 16, 4}, {1000, 7, 3}, {67, 16, 4},
                                                     {65, 16, 4},   {30, 16, 4},  {5, 16, 4}};
  for (const auto& [tokens, length, streams] : settings) {
    const StreamOrder order(tokens, length, streams, 3);
    const int64_t epoch = order.per_epoch();
    ASSERT_EQ(epoch % streams, 0);
    std::set<int64_t> phases;
    for (int64_t e = 0; e < 5; ++e) {
      int64_t covered = 0, first = tokens, last = 0;
      for (int64_t k = e * epoch; k < (e + 1) * epoch; ++k) {
        const StreamOrder::Next next = order.at(k);
        EXPECT_EQ(next.first, k - e * epoch < streams) << k;
        EXPECT_LE(next.window.length, length);
        if (!next.first) {
          const Window before = order.at(k - streams).window;
          EXPECT_EQ(next.window.begin, before.begin + before.length) << k;
        }
        covered += next.window.length;
        first = std::min(first, next.window.begin);
        last = std::max(last, next.window.begin + next.window.length);
      }
      // no token twice, and a target behind the last
      EXPECT_EQ(covered, last - first);
      EXPECT_LE(last + 1, tokens);
      EXPECT_LT(tokens - covered, streams * length + length);
      phases.insert(first);
    }
    if (tokens == 1000) {
      EXPECT_GT(phases.size(), 1u);
    }
  }
  EXPECT_THROW(StreamOrder(4, 16, 4, 3), Error);
}

TEST(Windows, PredictEveryTokenButTheFirstOnce) {
  for (const int64_t tokens : {2, 16, 17, 18, 33, 40}) {
    int64_t predicted = 0, next = 0;
    for (const Window& window : windows_in_order(tokens, 16)) {
      EXPECT_EQ(window.begin, next);
      next += window.length;
      predicted += window.length;
    }
    EXPECT_EQ(predicted, tokens - 1);
  }
}

TEST(Pack, NeverCrossesDocuments) {
  const TemporaryFolder folder;
  // token = 100 * document + index
  std::vector<std::vector<int32_t>> documents;
  for (const int length : {5, 1, 12, 3, 30, 1, 1, 8}) {
    documents.emplace_back(length);
    std::iota(documents.back().begin(), documents.back().end(),
              100 * static_cast<int32_t>(documents.size()));
  }
  const TokenSplit split = split_of(folder, documents);
  EXPECT_EQ(split.documents(), 8);
  int64_t predicted = 0;
  for (const int64_t length : {4, 7, 60}) {
    const auto windows = windows_in_order(split.tokens(), length);
    const PackedBatch batch = pack(split, windows);
    ASSERT_EQ(batch.ids.size(), batch.targets.size());
    int64_t at = 0;
    for (const PackedDocument& piece : batch.pieces) {
      EXPECT_EQ(piece.begin, at);
      at += piece.length;
      const int64_t document = batch.ids[static_cast<size_t>(piece.begin)] / 100;
      for (int64_t i = piece.begin; i < piece.begin + piece.length; ++i) {
        const int64_t id = batch.ids[static_cast<size_t>(i)],
                      target = batch.targets[static_cast<size_t>(i)];
        EXPECT_EQ(id / 100, document);
        const bool ends = id % 100 + 1 ==
                          static_cast<int64_t>(documents[static_cast<size_t>(document - 1)].size());
        EXPECT_EQ(target, ends ? -1 : id + 1);
      }
    }
    EXPECT_EQ(at, static_cast<int64_t>(batch.ids.size()));
    predicted = batch.n_targets;
    EXPECT_EQ(predicted, split.tokens() - split.documents());
  }
}

TEST(TokenSplit, WideIdsAndHostileFolders) {
  const TemporaryFolder folder;
  std::vector<int64_t> back(3);
  split_of(folder, {{70'000, 1, 99'999}}).read(0, back);
  EXPECT_EQ(back, (std::vector<int64_t>{70'000, 1, 99'999}));
  expect_error(ErrorKind::internal, "4 tokens at 0 of 3", [&] {
    std::vector<int64_t> four(4);
    TokenSplit::open(folder / "t.tokens").read(0, four);
  });
  const std::string index = read_text_file(folder / "t.tokens/index.json");
  const auto with = [&](const std::string& key, const spec::Json& value) {
    spec::Json json = json_of(index);
    json[key] = value;
    folder.write("t.tokens/index.json", json.dump());
    return [&] { TokenSplit::open(folder / "t.tokens"); };
  };
  expect_error(ErrorKind::file, "bytes; expected", with("tokens", 4));
  expect_error(ErrorKind::file, "out of range", with("tokens", int64_t{1} << 60));
  expect_error(ErrorKind::file, "out of range", with("documents", int64_t{1} << 61));
  expect_error(ErrorKind::file, "not a count", with("tokens", -1));
  for (const int64_t width : {int64_t{3}, (int64_t{1} << 32) + 2})
    expect_error(ErrorKind::file, "out of range", with("token_bytes", width));
}

}  // namespace
}  // namespace tessera::train::packing_test
