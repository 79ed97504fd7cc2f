#include "tessera/kernels/convolution/long_conv.h"

#include <fmt/format.h>

#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::long_conv_test {
namespace {

TEST(LongConv, OddSizesAgainstDouble) {
  for (const int64_t C : {1, 7, 16, 33, 80})
    for (const int64_t start : {0, 1, 20})
      for (const int64_t T : {1, 5, 8, 19}) {
        const int64_t S = start + T;
        const Values z(S * (C + 3), 1), k(S * (C + 2), 2);
        std::vector<double> want(at(T * C), 0.0), magnitude(at(T * C), 0.0);
        for (int64_t t = 0; t < T; ++t)
          for (int64_t s = 0; s <= start + t; ++s)
            for (int64_t c = 0; c < C; ++c) {
              const double term = static_cast<double>(k[(start + t - s) * (C + 2) + c]) *
                                  static_cast<double>(z[s * (C + 3) + c]);
              want[at(t * C + c)] += term;
              magnitude[at(t * C + c)] += std::abs(term);
            }
        on_every_target([&] {
          std::vector<float> y(at(T * C), -1.0f);
          long_conv({T, S, C, start, z.data(), C + 3, k.data(), C + 2, y.data()});
          // S roundings of at most half a unit in the last place of the terms' magnitude
          for (int64_t i = 0; i < T * C; ++i)
            ASSERT_LE(std::abs(static_cast<double>(y[at(i)]) - want[at(i)]),
                      static_cast<double>(S) * 0x1p-24 * magnitude[at(i)]);
        });
      }
}

TEST(LongConv, CallsPiecesAndThreadsGiveTheBitsOfOneCall) {
  const int64_t T = 41, C = 150;
  const Values z(T * C, 1), k(T * C, 2);
  on_every_target([&] {
    std::vector<float> whole(at(T * C));
    long_conv({T, T, C, 0, z.data(), C, k.data(), C, whole.data()});
    for (const int threads : {1, 2}) {
      const Threads scope(threads);
      for (const int64_t call : {1, 3, 9, 41})
        for (const int64_t piece : {1, 7, 16, 41}) {
          std::vector<float> y(at(T * C), -1.0f);
          for (int64_t start = 0; start < T; start += call) {
            const int64_t n = std::min(call, T - start);
            for (int64_t from = 0; from < start + n; from += piece)
              long_conv({n, std::min(piece, start + n - from), C, start - from, z.data() + from * C,
                         C, k.data(), C, y.data() + start * C,
                         /*onto=*/from > 0});
          }
          expect_same_bits(y.data(), whole.data(), T * C, fmt::format("{} {}", call, piece));
        }
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::long_conv_test
