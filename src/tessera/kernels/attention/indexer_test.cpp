#include "tessera/kernels/attention/indexer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::indexer_test {
namespace {

/// Scores of all pairs; those of keys behind a query stay -1.
std::vector<float> scores(const Values& q,
                          const Values& k,
                          const Values& w,
                          int64_t H,
                          int64_t D,
                          int64_t first,
                          int64_t T,
                          const std::vector<int64_t>& spans) {
  std::vector<IndexKeys> keys;
  int64_t at_key = 0;
  for (const int64_t n : spans) {
    keys.push_back({k.data() + at_key * D, n});
    at_key += n;
  }
  std::vector<float> out(at(T * at_key), -1.0f);
  index_scores({T, H, D, q.data(), w.data(), 0.7f, keys.data(), static_cast<int64_t>(keys.size()),
                first, out.data(), at_key});
  return out;
}

TEST(Indexer, OddSizesAgainstDouble) {
  for (const int64_t H : {1, 3, 15, 16, 32, 64, 112})
    for (const int64_t D : {1, 7, 8, 33})
      for (const int64_t first : {0, 5, 130}) {
        constexpr int64_t T = 3;
        const int64_t S = first + T;
        const Values q(T * H * D, 1), k(S * D, 2), w(T * H, 3);
        std::vector<double> want(at(T * S), -1.0);
        for (int64_t t = 0; t < T; ++t)
          for (int64_t s = 0; s <= first + t; ++s) {
            double sum = 0;
            for (int64_t h = 0; h < H; ++h) {
              double product = 0;
              for (int64_t c = 0; c < D; ++c)
                product +=
                    static_cast<double>(q[(t * H + h) * D + c]) * static_cast<double>(k[s * D + c]);
              sum += static_cast<double>(w[t * H + h]) * std::max(0.0, 0.7 * product);
            }
            want[at(t * S + s)] = sum;
          }
        on_every_target([&] {
          const std::vector<float> out = scores(q, k, w, H, D, first, T, {S});
          // sums of more heads cancel more
          expect_near(out.data(), want.data(), T * S, 2e-5, 2e-6 * std::max(1.0, H / 15.0));
        });
      }
}

void bits_of_a_query_are_its_own(int64_t H) {
  constexpr int64_t D = 19, S = 2100;
  const Values q(4 * H * D, 1), k(S * D, 2), w(4 * H, 3);
  on_every_target([&] {
    const std::vector<float> all = scores(q, k, w, H, D, S - 4, 4, {S});
    // pages, another number of threads
    const Threads one(1);
    EXPECT_EQ(scores(q, k, w, H, D, S - 4, 4, {64, 1, 1900, 135}), all);
    // the third query alone
    Values q2(H * D), w2(H);
    std::copy(q.data() + 2 * H * D, q.data() + 3 * H * D, q2.data());
    std::copy(w.data() + 2 * H, w.data() + 3 * H, w2.data());
    const std::vector<float> alone = scores(q2, k, w2, H, D, S - 2, 1, {S});
    for (int64_t s = 0; s < S - 1; ++s) ASSERT_EQ(alone[at(s)], all[at(2 * S + s)]) << s;
  });
}

TEST(Indexer, BitsOfAQueryAreItsOwn) {
  for (const int64_t H : {11, 16, 48}) bits_of_a_query_are_its_own(H);
}

TEST(Indexer, ATeamGivesTheSameBits) {
  constexpr int64_t H = 5, D = 24, S = 700;
  const Values q(4 * H * D, 1), k(S * D, 2), w(4 * H, 3);
  const IndexKeys pages[] = {{k.data(), 300}, {k.data() + 300 * D, 400}};
  // three queries at the end of a document, and the first one of another
  const auto calls = [&](std::vector<float>& out) {
    out.assign(at(4 * S), -1.0f);
    return std::array{
        IndexScores{3, H, D, q.data(), w.data(), 0.7f, pages, 2, S - 3, out.data(), S},
        IndexScores{1, H, D, q.data() + 3 * H * D, w.data() + 3 * H, 0.7f, pages, 2, 0,
                    out.data() + 3 * S, S}};
  };
  for (const int threads : {1, 2, 5}) {
    const Threads scope(threads);
    on_every_target([&] {
      std::vector<float> want, got;
      for (const IndexScores& one : calls(want)) index_scores(one);
      const auto both = calls(got);
      work_together([&](Team& team) { index_scores(team, both.data(), 2); });
      EXPECT_EQ(got, want);
    });
  }
}

}  // namespace
}  // namespace tessera::kernels::indexer_test
