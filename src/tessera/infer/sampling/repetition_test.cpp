// What changes single logits by the tokens before, against transformers 5.23 on float64.
#include "tessera/infer/sampling/repetition.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/infer/sampling/sampling.h"

namespace tessera::infer::repetition_test {
namespace {

using Ids = std::vector<int64_t>;
constexpr double kNever = -INFINITY;
const Ids kSeen = {1, 4, 7, 2, /* the answer */ 4, 7, 2, 4, 7};
const Ids kPrompt = {1, 4, 7, 2}, kSource = {4, 7, 9, 11, 7, 9, 5, 7, 10};

std::vector<float> twelve() {
  std::vector<float> z;
  for (int i = 0; i < 12; ++i) z.push_back(static_cast<float>(3 * std::sin(0.7 * i + 0.1)));
  return z;
}

/// Only the ids of `want` differ from the logits.
void expect(const std::vector<float>& got, const std::map<int64_t, double>& want) {
  const std::vector<float> z = twelve();
  for (size_t i = 0; i < z.size(); ++i) {
    const auto found = want.find(static_cast<int64_t>(i));
    const double right = found == want.end() ? z[i] : found->second;
    if (std::isinf(right))
      EXPECT_EQ(got[i], right) << i;
    else
      EXPECT_NEAR(got[i], right, 2e-6) << i;
  }
}

TEST(SaidBefore, FavoursTheSource) {
  std::vector<float> z = twelve();
  favour_source(z, kPrompt, 1.5);
  expect(z, {{1, 3.22810241}, {2, 4.48872744}, {4, 1.07662198}, {7, -1.91784855}});
}

TEST(SaidBefore, ForbidsRunsOfTheSource) {
  const auto after = [](int64_t size) {
    std::vector<float> z = twelve();
    block_ngrams(z, kSeen, kSource, size);
    return z;
  };
  expect(after(0), {});
  expect(after(1),
         {{4, kNever}, {5, kNever}, {7, kNever}, {9, kNever}, {10, kNever}, {11, kNever}});
  expect(after(2), {{9, kNever}, {10, kNever}});
  expect(after(3), {{9, kNever}});
  expect(after(5), {});
  std::vector<float> z = twelve();
  block_ngrams(z, Ids{4}, kSource, 5);  // too little has been said
  expect(z, {});
}

TEST(SaidBefore, BiasesSequences) {
  std::vector<float> z = twelve();
  bias_sequences(z, kSeen,
                 std::vector<std::pair<Ids, double>>{{{3}, 1.5},
                                                     {{7, 2}, -2},
                                                     {{4, 7, 2}, 0.25},
                                                     {{4, 4}, 9},
                                                     {{1, 4, 7, 2, 4, 7, 2, 4, 7, 5}, 1},
                                                     {{9, 1, 4, 7, 2, 4, 7, 2, 4, 7, 6}, 1},
                                                     {{11, 3}, 5},
                                                     {{7, 99}, 5}});
  expect(z, {{2, 1.24248496}, {3, 3.92548921}, {5, -.32756133}});
}

TEST(SaidBefore, HastensTheEnd) {
  const auto after = [](int64_t start, std::vector<float> z) {
    hasten_end(
        z, 5,
        {.exponential_decay_start = start, .exponential_decay_factor = 1.3, .eos_ids = {3, 9, 99}});
    return z;
  };
  expect(after(2, twelve()), {{3, 5.3287998}, {9, .76817581}});
  expect(after(4, twelve()), {{3, 3.15313597}, {9, .4545419}});
  expect(after(5, twelve()), {});
  std::vector<float> banned = twelve();
  banned[9] = -INFINITY;
  expect(after(2, banned), {{3, 5.3287998}, {9, kNever}});
  // far behind it stays a number
  std::vector<float> z = twelve();
  hasten_end(z, 100000, {.exponential_decay_factor = 2, .eos_ids = {3}});
  EXPECT_TRUE(std::isfinite(z[3]));
  EXPECT_GT(z[3], 1e20F);
}

TEST(SaidBefore, AllInTransformersOrder) {
  std::vector<float> z = twelve();
  SamplingOptions options;
  options.no_repeat_ngram_size = 3;
  options.repetition_penalty = 1.3;
  options.encoder_repetition_penalty = 1.5;
  options.exponential_decay_start = 2;
  options.exponential_decay_factor = 1.3;
  options.sequence_bias = {{{3}, 1.5}, {{7, 2}, -2}, {{5}, kNever}, {{7, 8}, kNever}};
  options.logit_bias = {{10, kNever}};
  options.eos_ids = {3, 9};
  // n-grams of one text and favoured tokens of another, as the reference was asked
  options.source_ids = kPrompt;
  EXPECT_TRUE(change_logits(z, kSeen, 4, options));
  block_ngrams(z, kSeen, kSource, 2);
  expect(z, {{1, 2.4831557},
             {2, kNever},
             {3, 8.6242998},
             {4, .82817075},
             {5, kNever},
             {7, -2.49320311},
             {8, kNever},
             {9, kNever},
             {10, kNever}});
  EXPECT_FALSE(change_logits(z, kSeen, 4, {.temperature = 0.5, .top_k = 3}));
}

}  // namespace
}  // namespace tessera::infer::repetition_test
