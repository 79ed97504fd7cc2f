// Searches of a memory against sorted products.
#include "tessera/ops/attention/key_search.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string>

#include "tessera/ops/live_bytes_testing.h"
#include "tessera/ops/attention/lsh_attention.h"
#include "tessera/ops/ops_testing.h"

namespace tessera::ops::key_search_test {
namespace {

/// The k best of all keys for one query and head, ascending; of equal ones the earlier.
std::vector<int64_t> best(const Tensor& q_D, const Tensor& k_SD, int64_t k) {
  const Tensor products = at::mv(k_SD.to(at::kDouble), q_D.to(at::kDouble)).contiguous();
  const double* of = products.const_data_ptr<double>();
  std::vector<int64_t> order(static_cast<size_t>(k_SD.size(0)));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return of[a] > of[b]; });
  order.resize(std::min(order.size(), static_cast<size_t>(k)));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int64_t> list_of(const FoundKeys& found, int64_t list) {
  return {found.keys.begin() + found.begin(list), found.keys.begin() + found.end(list)};
}

TEST(KeySearch, FindsTheGreatestProducts) {
  constexpr int64_t kT = 5, kH = 3, kS = 2100, kD = 7;
  for (const auto type : {at::kFloat, at::kDouble}) {
    // whole numbers, whose products have no rounding; many are equal
    const auto whole = [&](const Tensor& x) { return (8 * x).round().to(type); };
    const Tensor q = whole(gen({kT, kH, kD}, 1.7, 0.3)), k = whole(gen({kS, kH, kD}, 2.3, 0.9));
    // one part that is searched in pieces, and parts
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{kS}, {1, 1099, 1000}}) {
      KeySearch search(k.split_with_sizes(lengths));
      for (const int64_t n : {1, 4, 3000}) {
        const FoundKeys found = search.nearest(q, n);
        ASSERT_EQ(found.ends.size(), static_cast<size_t>(kT * kH));
        for (int64_t list = 0; list < kT * kH; ++list)
          EXPECT_EQ(list_of(found, list), best(q[list / kH][list % kH], k.select(1, list % kH), n));
      }
    }
  }
}

TEST(KeySearch, OfEqualProductsTheEarliest) {
  KeySearch search({at::ones({4, 1, 2}), at::ones({3, 1, 2}) * 2});
  EXPECT_EQ(list_of(search.nearest(at::ones({1, 1, 2}), 5), 0),
            (std::vector<int64_t>{0, 1, 4, 5, 6}));
}

TEST(KeySearch, CallsShareTheMemoryOfTheirScores) {
  constexpr int64_t kT = 64, kS = 8192, kD = 16;
  const Tensor q = gen({kT, 1, kD}, 1.7, 0.3).to(at::kFloat),
               k = gen({kS, 1, kD}, 2.3, 0.9).to(at::kFloat);
  LiveBytes bytes;
  KeySearch search({k});
  search.nearest(q, 8);
  const int64_t scores = 4 * kT * kS, held = bytes.now();
  EXPECT_LT(held, scores + (1 << 16));
  // besides them the products with a piece of the keys
  EXPECT_LT(bytes.most(), scores + (1 << 19));
  bytes.forget_most();
  search.nearest(q, 8);
  EXPECT_EQ(bytes.now(), held);
  EXPECT_LT(bytes.most(), held + (1 << 19));
}

TEST(KeySearch, BucketsAreTheNearestDirections) {
  constexpr int64_t kN = 40, kH = 2, kD = 5, kRounds = 3, kBuckets = 12;
  const Tensor x = gen({kN, kH, kD}, 1.7, 0.3);
  const Tensor turns = lsh_rotations(RandomKey(5), {kBuckets}, kRounds, kH, kD)[0];
  const Tensor got = key_buckets(x.to(at::kFloat), turns);
  for (int64_t n = 0; n < kN; ++n)
    for (int64_t h = 0; h < kH; ++h)
      for (int64_t r = 0; r < kRounds; ++r) {
        const Tensor along = at::mv(turns[r][h].t(), x[n][h]);
        EXPECT_EQ(got[n][h][r].item<float>(), at::cat({along, -along}).argmax().item<int64_t>());
      }
}

TEST(KeySearch, ByBucketsFindsTheGreatestOfThoseThatShareOne) {
  constexpr int64_t kT = 9, kH = 2, kS = 300, kD = 11, kRounds = 2, kTop = 4;
  const Tensor q = gen({kT, kH, kD}, 1.7, 0.3), k = gen({kS, kH, kD}, 2.3, 0.9);
  const Tensor turns = lsh_rotations(RandomKey(5), {32}, kRounds, kH, kD)[0];
  const Tensor of_q = key_buckets(q, turns), of_k = key_buckets(k, turns);
  int64_t none = 0, shorter = 0;
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{kS}, {120, 180}}) {
    const KeySearch search(k.split_with_sizes(lengths), of_k.split_with_sizes(lengths));
    const FoundKeys found = search.nearest(q, of_q, kTop);
    int64_t scored = 0;
    for (int64_t list = 0; list < kT * kH; ++list) {
      const int64_t t = list / kH, h = list % kH;
      const Tensor sharing =
          of_k.select(1, h).eq(of_q[t][h].unsqueeze(0)).any(1).nonzero().flatten();
      std::vector<int64_t> want;
      for (const int64_t i : best(q[t][h], k.select(1, h).index_select(0, sharing), kTop))
        want.push_back(sharing[i].item<int64_t>());
      EXPECT_EQ(list_of(found, list), want);
      scored += sharing.numel();
      none += want.empty() ? 1 : 0;
      shorter += !want.empty() && want.size() < kTop ? 1 : 0;
    }
    EXPECT_EQ(found.scored, scored);
  }
  EXPECT_GT(none + shorter, 0);
}

// 4096 unit keys around 64 centres and queries around the same: the default tables find 93 of 100
// nearest keys, and score less than a fifth of all.
TEST(KeySearch, RecallOnClusteredKeys) {
  constexpr int64_t kT = 256, kS = 4096, kD = 32, kCentres = 64, kTop = 16;
  auto random = at::detail::createCPUGenerator(11);
  const auto unit = [](const Tensor& x) { return x / x.norm(2, -1, true); };
  const Tensor centres = unit(at::randn({kCentres, kD}, random, at::kFloat));
  // |noise| about 0.6: a vector's cosine with its centre is about 0.86
  const auto around = [&](int64_t n) {
    const Tensor which = at::randint(kCentres, {n}, random, at::kLong);
    const Tensor noise = at::randn({n, kD}, random, at::kFloat) * (0.6 / std::sqrt(kD));
    return unit(centres.index_select(0, which) + noise).unsqueeze(1);
  };
  const Tensor k = around(kS), q = around(kT);
  const Tensor turns = lsh_rotations(RandomKey(0), {64}, 8, 1, kD)[0];
  KeySearch exact({k});
  const KeySearch hashed({k}, {key_buckets(k, turns)});
  const FoundKeys all = exact.nearest(q, kTop),
                  found = hashed.nearest(q, key_buckets(q, turns), kTop);
  int64_t hits = 0;
  for (int64_t list = 0; list < kT; ++list) {
    const auto want = list_of(all, list), got = list_of(found, list);
    std::vector<int64_t> both;
    std::set_intersection(want.begin(), want.end(), got.begin(), got.end(),
                          std::back_inserter(both));
    hits += static_cast<int64_t>(both.size());
  }
  const double recall = static_cast<double>(hits) / (kT * kTop),
               scored = static_cast<double>(found.scored) / static_cast<double>(all.scored);
  EXPECT_GE(recall, 0.93);
  EXPECT_LE(scored, 0.2);
  RecordProperty("recall", std::to_string(recall));
  RecordProperty("scored", std::to_string(scored));
}

}  // namespace
}  // namespace tessera::ops::key_search_test
