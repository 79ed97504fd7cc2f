#include "tessera/train/objective/denoising/denoising.h"

#include <algorithm>
#include <numeric>

#include "tessera/train/train_testing.h"

namespace tessera::train::denoising_test {
namespace {

using Ids = std::vector<int64_t>;

Ids range(int64_t from, int64_t n) {
  Ids out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), from);
  return out;
}

constexpr int64_t kMask = 99;

Denoising denoising(Denoising::Options options) {
  options.mask = kMask;
  return {{true, 4096}, std::move(options)};
}

TEST(Denoising, SentencesTradePlaces) {
  const Ids ids = {1, 2, 13, 3, 13, 4, 5, 6, 13}, ends = {13};
  const auto sentences = sentences_of(ids, ends);
  EXPECT_EQ(sentences, (std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 5}, {5, 9}}));
  EXPECT_EQ(in_order(ids, sentences, Ids{2, 0, 1}), (Ids{4, 5, 6, 13, 1, 2, 13, 3, 13}));
  // an end that is missing, and several that are one
  EXPECT_EQ(sentences_of(Ids{13, 13, 1, 2}, ends),
            (std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {2, 4}}));
}

TEST(Denoising, SpansBecomeOneMaskEachAndEmptyOnesAreMasksPutIn) {
  EXPECT_EQ(infilled(range(10, 12), Ids{2, 0, 3}, Ids{1, 5, 8}, kMask),
            (Ids{10, kMask, 13, 14, 15, kMask, 16, 17, kMask, 21}));
  // at either end
  EXPECT_EQ(infilled(range(10, 3), Ids{1, 0}, Ids{0, 3}, kMask), (Ids{kMask, 11, 12, kMask}));
}

TEST(Denoising, ShareOfSentencesMoves) {
  // 40 sentences of 3 tokens; half of them trade places, some of these with themselves
  Ids ids;
  for (int64_t s = 0; s < 40; ++s) ids.insert(ids.end(), {100 + s, 200 + s, 13});
  const auto out = denoising({.permute = 0.5, .infill = 0, .sentence_ends = {13}})
                       .apply({ids, false}, RandomKey(3));
  ASSERT_TRUE(out);
  EXPECT_EQ(out->asked, ids);
  int64_t moved = 0;
  for (size_t s = 0; s < 40; ++s) {
    EXPECT_EQ(out->given[3 * s] + 100, out->given[3 * s + 1]);
    moved += out->given[3 * s] != ids[3 * s];
  }
  EXPECT_LE(moved, 20);
  EXPECT_GE(moved, 14);
  Ids sorted = out->given;
  std::sort(sorted.begin(), sorted.end());
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(sorted, ids);
}

TEST(Denoising, TheRateOfInfillingHolds) {
  const Ids ids = range(1000, 512);
  double masks = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    const auto out = denoising({.permute = 0, .infill = 0.3}).apply({ids, false}, RandomKey(i));
    int64_t kept = 0;
    for (const int64_t id : out->given) kept += id != kMask;
    EXPECT_EQ(kept, 512 - 154);  // ceil(0.3 * 512)
    masks += static_cast<double>(std::ssize(out->given) - kept);
    Ids rest = out->given;
    std::erase(rest, kMask);
    EXPECT_TRUE(std::is_sorted(rest.begin(), rest.end()));
  }
  // spans of mean 3, the last one cut: 154 / 3 = 51.3 and half a span
  EXPECT_NEAR(masks / 200, 51.6, 1.5);
}

TEST(Denoising, ErasesAndTurnsAndEnds) {
  const Ids ids = range(10, 20);
  const auto erased = denoising({.permute = 0, .infill = 0, .erase = 0.25, .eos = 1})
                          .apply({ids, true}, RandomKey(1));
  EXPECT_EQ(std::ssize(erased->given), 16);
  EXPECT_EQ(erased->given.back(), 1);
  EXPECT_TRUE(std::is_sorted(erased->given.begin(), erased->given.end() - 1));
  EXPECT_EQ(std::ssize(erased->asked), 21);
  EXPECT_EQ(erased->asked.back(), 1);
  const auto turned =
      denoising({.permute = 0, .infill = 0, .rotate = 1}).apply({ids, true}, RandomKey(2));
  const auto first = static_cast<size_t>(turned->given.front() - 10);
  EXPECT_GT(first, 0u);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(turned->given[i], ids[(i + first) % 20]);
  // as it is
  const auto clean = denoising({.permute = 0, .infill = 0}).apply({ids, true}, RandomKey(2));
  EXPECT_EQ(clean->given, ids);
}

}  // namespace
}  // namespace tessera::train::denoising_test
