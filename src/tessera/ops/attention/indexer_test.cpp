// The keys of greatest score: against a stable sort of the scores, with equal scores and such that
// are no numbers.
#include "tessera/ops/attention/indexer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tessera::ops::indexer_test {
namespace {

/// One query at position S - 1 of one head and one channel, so that scores are what the keys hold.
std::vector<int32_t> chosen(const std::vector<float>& scores, int64_t k) {
  const auto n = static_cast<int64_t>(scores.size());
  const Tensor keys = at::tensor(scores).reshape({n, 1});
  const Tensor out = top_keys({at::ones({1, 1, 1}), at::ones({1, 1}), {keys}, 1.0, n - 1}, k);
  return {out.const_data_ptr<int32_t>(), out.const_data_ptr<int32_t>() + k};
}

std::vector<int32_t> expected(std::vector<float> scores, int64_t k) {
  for (float& score : scores)
    score = std::isnan(score) ? -std::numeric_limits<float>::infinity() : std::max(score, 0.0f);
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(TopKeys, AreThoseOfAStableSort) {
  at::manual_seed(1);
  for (const int64_t n : {9, 700, 5000})
    for (const int64_t k : {int64_t{1}, int64_t{8}, n / 16, n / 2, n - 1}) {
      if (k == 0) continue;
      for (const double levels : {3.0, 40.0, 1e6}) {
        const Tensor drawn = at::floor(at::rand({n}) * levels);
        std::vector<float> scores(drawn.const_data_ptr<float>(), drawn.const_data_ptr<float>() + n);
        EXPECT_EQ(chosen(scores, k), expected(scores, k)) << n << ' ' << k << ' ' << levels;
        // ascending: a sample of every sixteenth says as much of the rest as it can
        std::sort(scores.begin(), scores.end());
        EXPECT_EQ(chosen(scores, k), expected(scores, k)) << n << ' ' << k << ' ' << levels;
      }
    }
}

// The sample finds only the largest scores, fewer than k: all are looked through.
TEST(TopKeys, OfASampleThatMisleads) {
  std::vector<float> scores(4096, 1.0f);
  for (size_t i = 0; i < scores.size(); i += 16) scores[i] = 1000.0f + static_cast<float>(i);
  scores[5] = 3;
  EXPECT_EQ(chosen(scores, 300), expected(scores, 300));
}

TEST(TopKeys, LeaveOutWhatIsNoNumber) {
  std::vector<float> scores(1000);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = 1 + static_cast<float>(i * 37 % 1000);
  for (const size_t i : {0u, 16u, 17u, 999u}) scores[i] = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t k : {8, 996}) EXPECT_EQ(chosen(scores, k), expected(scores, k)) << k;
}

}  // namespace
}  // namespace tessera::ops::indexer_test
