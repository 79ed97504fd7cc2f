#include "tessera/train/objective/denoising/span_corruption.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tessera/train/train_testing.h"

namespace tessera::train::span_corruption_test {
namespace {

std::vector<int64_t> range(int64_t from, int64_t n) {
  std::vector<int64_t> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), from);
  return out;
}

/// Ids from `first` down.
std::vector<int64_t> sentinels(int64_t first, int64_t n) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(first - i);
  return out;
}

SpanCorruption spans(double rate, double mean_span, int64_t length = 512, bool encoder = true) {
  return {{encoder, length}, {rate, mean_span, sentinels(9999, 300), 1, {}}};
}

TEST(SpanCorruption, HidesTheSpansOfItsParts) {
  const SpanCorruption corruption({true, 512}, {0.3, 3, sentinels(99, 64), 1, {}});
  const SpanCounts counts = SpanCounts::of(20, 0.3, 3);
  EXPECT_EQ(counts.noise, 6);
  EXPECT_EQ(counts.spans, 2);
  const std::vector<int64_t> ids = range(10, 20);
  const DenoisingExample out =
      corruption.with_parts(ids, std::vector<int64_t>{5, 9}, std::vector<int64_t>{2, 4});
  EXPECT_EQ(out.given, (std::vector<int64_t>{10, 11, 12, 13, 14, 99, 17, 18, 19, 20, 21, 22, 23, 24,
                                             25, 98, 1}));
  EXPECT_EQ(out.asked, (std::vector<int64_t>{99, 15, 16, 98, 26, 27, 28, 29, 1}));
}

TEST(SpanCorruption, CountsAreThoseOfT5) {
  struct Case {
    double rate, span;
    int64_t raw, target, noise, spans;
  };
  // for an input of 512 tokens, and of 512 tokens
  for (const Case& c : {Case{0.15, 3, 568, 114, 77, 26}, Case{0.15, 8, 588, 100, 77, 10},
                        Case{0.5, 3, 766, 512, 256, 85}, Case{0.5, 8, 908, 512, 256, 32},
                        Case{0.15, 64, 600, 92, 77, 1}, Case{0.5, 64, 1006, 512, 256, 4}}) {
    const SpanCorruption corruption = spans(c.rate, c.span);
    EXPECT_EQ(corruption.raw_length(), c.raw) << c.rate << " " << c.span;
    const std::vector<int64_t> raw = range(0, c.raw);
    const auto out = corruption.apply({raw, false}, RandomKey(1));
    EXPECT_EQ(std::ssize(out->given), 512);
    EXPECT_EQ(std::ssize(out->asked), c.target);
    const SpanCounts counts = SpanCounts::of(512, c.rate, c.span);
    EXPECT_EQ(counts.noise, c.noise);
    EXPECT_EQ(counts.spans, c.spans);
  }
}

TEST(SpanCorruption, WhatIsAskedFillsWhatIsGiven) {
  for (const int64_t n : {2, 3, 7, 63, 200}) {
    const std::vector<int64_t> ids = range(10, n);
    const SpanCorruption corruption = spans(0.3, 2);
    const auto out = corruption.apply({ids, false}, RandomKey(static_cast<uint64_t>(n)));
    ASSERT_TRUE(out);
    const auto is_sentinel = [](int64_t id) { return id > 9000; };
    // the text again: behind every sentinel of what is given, what follows it in what is asked
    std::vector<int64_t> text;
    EXPECT_EQ(out->given.back(), 1);
    EXPECT_EQ(out->asked.back(), 1);
    for (auto given = out->given.begin(); given + 1 < out->given.end(); ++given) {
      if (!is_sentinel(*given)) {
        text.push_back(*given);
        continue;
      }
      auto asked = std::find(out->asked.begin(), out->asked.end(), *given);
      ASSERT_NE(asked, out->asked.end());
      for (++asked; asked + 1 < out->asked.end() && !is_sentinel(*asked); ++asked)
        text.push_back(*asked);
    }
    EXPECT_EQ(text, ids) << n;
    EXPECT_EQ(out->given.front(), 10);  // text begins
    EXPECT_EQ(out->given.end()[-2],
              out->asked[0] - SpanCounts::of(n, 0.3, 2).spans + 1);  // noise ends
  }
  const std::vector<int64_t> one = {10};
  EXPECT_FALSE(spans(0.15, 3).apply({one, true}, RandomKey(1)));
}

TEST(SpanCorruption, CutsAreDrawnWithoutFavour) {
  // 7 into 3 parts: 15 ways
  std::map<std::vector<int64_t>, int> seen;
  for (uint64_t i = 0; i < 15000; ++i) ++seen[random_parts(7, 3, RandomKey(4).fold(i))];
  EXPECT_EQ(seen.size(), 15u);
  for (const auto& [parts, times] : seen) {
    EXPECT_EQ(parts[0] + parts[1] + parts[2], 7);
    EXPECT_NEAR(times, 1000, 155);
  }
}

TEST(SpanCorruption, AModeOpensWhatIsGiven) {
  const SpanCorruption corruption({true, 512}, {0.15, 3, sentinels(99, 60), 1, 7});
  EXPECT_EQ(corruption.raw_length(), 567);
  const std::vector<int64_t> ids = range(10, 20);
  const auto out = corruption.apply({ids, false}, RandomKey(1));
  EXPECT_EQ(out->given.front(), 7);
  EXPECT_NE(out->asked.front(), 7);
}

TEST(SpanCorruption, InADecoderBothShareTheLength) {
  const SpanCorruption corruption = spans(0.15, 3, 512, /*encoder=*/false);
  const std::vector<int64_t> raw = range(0, corruption.raw_length()),
                             more = range(0, corruption.raw_length() + 1);
  const auto tokens = [&](const std::vector<int64_t>& ids) {
    const auto out = corruption.apply({ids, false}, RandomKey(1));
    return std::ssize(out->given) + std::ssize(out->asked) - 1;
  };
  EXPECT_LE(tokens(raw), 512);
  EXPECT_GT(tokens(more), 512);
}

TEST(SpanCorruption, TooFewSentinelsAndTooShortLengthsAreRefused) {
  expect_error(ErrorKind::spec, "found 27; texts of 568 tokens have up to 28 spans", [] {
    SpanCorruption({true, 512}, {0.15, 3, sentinels(99, 27), 1, {}});
  });
  expect_error(ErrorKind::spec, "train.length", [] { spans(0.15, 3, 2); });
}

TEST(Noise, APrefixIsCutAnywhereInATextAndTheRestIsAsked) {
  const std::vector<int64_t> ids = range(10, 5);
  const PrefixCut cut({true, 16}, 7, 1);
  std::map<int64_t, int> seen;
  for (uint64_t i = 0; i < 4000; ++i) {
    const auto out = cut.apply({ids, true}, RandomKey(1).fold(i));
    ASSERT_TRUE(out);
    EXPECT_EQ(out->given.front(), 7);
    EXPECT_EQ(out->asked.back(), 1);
    std::vector<int64_t> text(out->given.begin() + 1, out->given.end());
    ++seen[std::ssize(text)];
    text.insert(text.end(), out->asked.begin(), out->asked.end() - 1);
    EXPECT_EQ(text, ids);
  }
  // behind 1 to 4 tokens
  EXPECT_EQ(seen.size(), 4u);
  for (const auto& [at, times] : seen) EXPECT_NEAR(times, 1000, 137) << at;
  EXPECT_EQ(cut.apply({ids, false}, RandomKey(1))->asked.back(), 14);
  EXPECT_FALSE(cut.apply({std::span(ids).first(1), true}, RandomKey(1)));
}

TEST(Noise, PacksForADecoderAloneAndBesideAnEncoder) {
  const std::vector<NoisedPiece> pieces = {
      {0, {{4, 5}, {6, 7, 8}}}, {0, {{9}, {3}}}, {1, {{2}, {1, 1}}}};
  const PackedBatch alone = pack_noised(pieces, std::nullopt, 16);
  EXPECT_EQ(alone.ids, (std::vector<int64_t>{4, 5, 6, 7, 9, 2, 1}));
  EXPECT_EQ(alone.targets, (std::vector<int64_t>{-1, 6, 7, 8, 3, 1, 1}));
  EXPECT_EQ(alone.n_targets, 6);
  ASSERT_EQ(alone.pieces.size(), 3u);
  EXPECT_EQ(alone.pieces[0].prefix, 2);
  EXPECT_EQ(alone.pieces[1].begin, 4);
  EXPECT_EQ(alone.pieces[2].row, 1);
  EXPECT_TRUE(alone.sources.empty());
  const PackedBatch beside = pack_noised(pieces, 0, 16);
  EXPECT_EQ(beside.ids, (std::vector<int64_t>{0, 6, 7, 0, 0, 1}));
  EXPECT_EQ(beside.targets, (std::vector<int64_t>{6, 7, 8, 3, 1, 1}));
  EXPECT_EQ(beside.sources, (std::vector<std::vector<int64_t>>{{4, 5}, {9}, {2}}));
  // what is too long
  EXPECT_EQ(pack_noised(pieces, std::nullopt, 3).ids, (std::vector<int64_t>{4, 5, 6, 9, 2, 1}));
  EXPECT_EQ(pack_noised(pieces, std::nullopt, 1).ids, (std::vector<int64_t>{4, 9, 2}));
  EXPECT_EQ(pack_noised(pieces, 0, 1).targets, (std::vector<int64_t>{6, 3, 1}));
}

}  // namespace
}  // namespace tessera::train::span_corruption_test
