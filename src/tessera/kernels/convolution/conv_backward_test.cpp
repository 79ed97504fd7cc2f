#include "tessera/kernels/convolution/conv_backward.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::conv_backward_test {
namespace {

double value(float v) {
  return static_cast<double>(v);
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
}  // namespace tessera::kernels::conv_backward_test
