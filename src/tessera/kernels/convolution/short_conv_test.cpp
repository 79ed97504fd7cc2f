#include "tessera/kernels/convolution/short_conv.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::short_conv_test {
namespace {

double value(float v) {
  return static_cast<double>(v);
}

TEST(CausalConv, SpecifiedValues) {
  const float x[] = {1, 2, 3, 4};
  const float w[] = {.1f, .2f, .3f, .4f};
  const float bias[] = {.05f};
  const double want[] = {0.45, 1.15, 2.05, 3.05};
  const double want_silu[] = {0.27478766, 0.87343755, 1.81619262, 2.91208671};
  on_every_target([&] {
    float y[4];
    float tail[3] = {};
    causal_conv1d({4, 1, 4, x, w, bias, tail, Activation::identity, y});
    expect_near(y, want, 4, 2e-7, 0);
    EXPECT_EQ(tail[0], 2);
    EXPECT_EQ(tail[2], 4);
    std::fill(tail, tail + 3, 0.0f);
    causal_conv1d({4, 1, 4, x, w, bias, tail, Activation::silu, y});
    expect_near(y, want_silu, 4, 3e-7, 6e-9);
  });
}

TEST(CausalConv, OddSizesAndAnySplit) {
  for (const int64_t C : odd_sizes())
    for (const int64_t K : {1, 2, 4, 7}) {
      constexpr int64_t kT = 12;
      const Values x(kT * C, 1), w(C * K, 2), bias(C, 3), start((K - 1) * C, 4);
      std::vector<double> want;
      for (int64_t t = 0; t < kT; ++t)
        for (int64_t c = 0; c < C; ++c) {
          double sum = static_cast<double>(bias[c]);
          for (int64_t j = 0; j < K; ++j) {
            const int64_t source = t - (K - 1) + j;
            const float in = source >= 0 ? x[source * C + c] : start[(source + K - 1) * C + c];
            sum += static_cast<double>(w[c * K + j]) * static_cast<double>(in);
          }
          want.push_back(sum);
        }
      on_every_target([&] {
        std::vector<float> whole(want.size()), split(want.size());
        Values tail = start;
        causal_conv1d({kT, C, K, x.data(), w.data(), bias.data(), tail.data(), Activation::identity,
                       whole.data()});
        expect_near(whole.data(), want.data(), kT * C, 1e-6, 2e-6);
        for (const int64_t step : {1, 2, 5}) {
          const Threads scope(step == 2 ? 1 : 3);
          Values other = start;
          for (int64_t t = 0; t < kT; t += step)
            causal_conv1d({std::min(step, kT - t), C, K, x.data() + t * C, w.data(), bias.data(),
                           other.data(), Activation::identity, split.data() + t * C});
          expect_same_bits(split.data(), whole.data(), kT * C, "y");
          expect_same_bits(other.data(), tail.data(), tail.size(), "tail");
        }
      });
    }
}

TEST(CausalConv, RefusesBrokenShapes) {
  EXPECT_THROW(
      causal_conv1d({1, 1, 0, nullptr, nullptr, nullptr, nullptr, Activation::identity, nullptr}),
      Error);
}

TEST(CausalConvBackward, OddSizesAgainstDouble) {
  for (const int64_t C : {1, 7, 16, 17, 40})
    for (const int64_t K : {1, 3, 4})
      for (const int64_t T : {1, 2, 9})
        for (const Activation act : {Activation::identity, Activation::silu}) {
          const Values x(T * C, 1), taps(K * C, 2), bias(C, 3), dy(T * C, 4);
          std::vector<double> dx(at(T * C)), dtaps(at(K * C), 2), dbias(at(C), 3);
          for (int64_t c = 0; c < C; ++c)
            for (int64_t t = 0; t < T; ++t) {
              double p = value(bias[c]);
              for (int64_t j = std::max<int64_t>(0, K - 1 - t); j < K; ++j)
                p += value(taps[j * C + c]) * value(x[(t - (K - 1) + j) * C + c]);
              const double s = 1 / (1 + std::exp(-p));
              const double slope = act == Activation::silu ? s * (1 + p * (1 - s)) : 1;
              const double dp = value(dy[t * C + c]) * slope;
              dbias[at(c)] += dp;
              for (int64_t j = std::max<int64_t>(0, K - 1 - t); j < K; ++j) {
                const int64_t source = (t - (K - 1) + j) * C + c;
                dx[at(source)] += value(taps[j * C + c]) * dp;
                dtaps[at(j * C + c)] += value(x[source]) * dp;
              }
            }
          on_every_target([&] {
            std::vector<float> got_dx(dx.size()), got_dtaps(dtaps.size(), 2),
                got_dbias(dbias.size(), 3);
            const int64_t middle = std::min<int64_t>(C, 5);
            for (const auto& [begin, end] : {std::pair{int64_t{0}, middle}, std::pair{middle, C}})
              causal_conv1d_backward({T, C, K, x.data(), taps.data(), bias.data(), act, dy.data(),
                                      got_dx.data(), got_dtaps.data(), got_dbias.data()},
                                     begin, end);
            expect_near(got_dx.data(), dx.data(), T * C, 2e-6, 4e-6);
            expect_near(got_dtaps.data(), dtaps.data(), K * C, 2e-6, 4e-6);
            expect_near(got_dbias.data(), dbias.data(), C, 2e-6, 4e-6);
          });
        }
}

TEST(CausalConvBackward, RefusesWhatItCannot) {
  CausalConvGradient g;
  EXPECT_THROW(causal_conv1d_backward(g, 0, 0), Error);
  g.K = 2;
  g.activation = Activation::relu;
  EXPECT_THROW(causal_conv1d_backward(g, 0, 0), Error);
}

}  // namespace
}  // namespace tessera::kernels::short_conv_test
