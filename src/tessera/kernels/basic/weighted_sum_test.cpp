#include "tessera/kernels/basic/weighted_sum.h"

#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::weighted_sum_test {
namespace {

TEST(WeightedSum, OddSizesAgainstDouble) {
  for (const int64_t C : {1, 7, 8, 9, 16, 33})
    for (const int64_t N : {0, 1, 5, 64})
      for (const int64_t M : {1, 4, 7}) {
        const Values a(M * (N + 2), 1), v(N * (C + 3) + 1, 2);
        std::vector<double> want(at(M * C), 0.0), magnitude(at(M * C), 0.0);
        for (int64_t i = 0; i < M; ++i)
          for (int64_t j = 0; j < N; ++j)
            for (int64_t c = 0; c < C; ++c) {
              const double term =
                  static_cast<double>(a[i * (N + 2) + j]) * static_cast<double>(v[j * (C + 3) + c]);
              want[at(i * C + c)] += term;
              magnitude[at(i * C + c)] += std::abs(term);
            }
        on_every_target([&] {
          std::vector<float> y(at(M * C), -1.0f);
          weighted_sum({M, N, C, a.data(), N + 2, v.data(), C + 3, y.data(), C});
          // N roundings of at most half a unit in the last place of the terms' magnitude
          for (int64_t i = 0; i < M * C; ++i)
            ASSERT_LE(std::abs(static_cast<double>(y[at(i)]) - want[at(i)]),
                      static_cast<double>(N) * 0x1p-24 * magnitude[at(i)]);
        });
      }
}

TEST(WeightedSum, ZerosBehindAndOtherRowsChangeNoBits) {
  const int64_t N = 37, C = 19;
  Values a(5 * N, 1);
  const Values v(N * C, 2);
  for (int64_t i = 0; i < 5; ++i)
    for (int64_t j = 20; j < N; ++j) a[i * N + j] = 0;
  on_every_target([&] {
    std::vector<float> whole(at(5 * C)), shorter(at(C));
    weighted_sum({5, N, C, a.data(), N, v.data(), C, whole.data(), C});
    for (int64_t i = 0; i < 5; ++i) {
      weighted_sum({1, 20, C, a.data() + i * N, N, v.data(), C, shorter.data(), C});
      for (int64_t c = 0; c < C; ++c) EXPECT_EQ(shorter[at(c)], whole[at(i * C + c)]);
    }
  });
}

TEST(WeightedSum, PiecesGiveTheBitsOfOneCall) {
  const int64_t M = 6, N = 37, C = 19;
  const Values a(M * N, 1), v(N * C, 2);
  on_every_target([&] {
    std::vector<float> whole(at(M * C)), pieces(at(M * C), -1.0f);
    weighted_sum({M, N, C, a.data(), N, v.data(), C, whole.data(), C});
    for (const auto& [from, to] : {std::pair{0, 1}, std::pair{1, 17}, std::pair{17, 37}})
      weighted_sum({M, to - from, C, a.data() + from, N, v.data() + from * C, C, pieces.data(), C,
                    /*onto=*/from > 0});
    EXPECT_EQ(pieces, whole);
  });
}

}  // namespace
}  // namespace tessera::kernels::weighted_sum_test
