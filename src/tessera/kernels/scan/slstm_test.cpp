#include "tessera/kernels/scan/slstm.h"

#include <algorithm>

#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::slstm_test {
namespace {

double value(float v) {
  return static_cast<double>(v);
}
double sigmoid(double v) {
  return 1 / (1 + std::exp(-v));
}

struct Inputs {
  int64_t T, H, P;
  Values pre{T * 4 * H * P, 1}, r{4 * H * P * P, 2, 0.3}, dy{T * H * P, 3};

  int64_t D() const { return H * P; }
  Slstm from(int64_t t, int64_t n, float* s, float* y) const {
    return {n, H, P, pre.data() + t * 4 * D(), r.data(), t == 0, s, y + t * D(), nullptr, nullptr};
  }
};

/// The cell without its stabiliser (m = 0), in double.
std::vector<double> reference(const Inputs& s,
                              const std::vector<double>& pre,
                              const std::vector<double>& r) {
  const int64_t d = s.D();
  std::vector<double> h(at(d)), c(h), n(h), y;
  for (int64_t t = 0; t < s.T; ++t) {
    const std::vector<double> last = h;
    for (int64_t o = 0; o < d; ++o) {
      double gate[4];
      for (int64_t g = 0; g < 4; ++g) {
        gate[g] = pre[at((t * 4 + g) * d + o)];
        for (int64_t i = 0; i < s.P; ++i)
          gate[g] += r[at((g * d + o) * s.P + i)] * last[at(o / s.P * s.P + i)];
      }
      c[at(o)] = sigmoid(gate[1]) * c[at(o)] + std::exp(gate[0]) * std::tanh(gate[2]);
      n[at(o)] = sigmoid(gate[1]) * n[at(o)] + std::exp(gate[0]);
      h[at(o)] = sigmoid(gate[3]) * c[at(o)] / n[at(o)];
    }
    y.insert(y.end(), h.begin(), h.end());
  }
  return y;
}

std::vector<double> doubles(const Values& v) {
  return {v.data(), v.data() + v.size()};
}

TEST(Slstm, SpecifiedValuesWithoutRecurrence) {
  // i, f, z, o of three tokens
  const float pre[] = {.5, 1, .5, 0, -1, -.5, -1, 1, 2, 3, 1.5, -1};
  const float r[4] = {};
  const double want[] = {0.23105858, 0.00551746, 0.21610107};
  const double want_state[] = {0.21610107, 0.90611182, 1.12767139, 2};
  on_every_target([&] {
    float state[4] = {9, 9, 9, 9}, y[3];
    slstm({3, 1, 1, pre, r, true, state, y, nullptr, nullptr});
    // the second output is a small difference of numbers of order 1
    expect_near(y, want, 3, 1e-6, 6e-8);
    expect_near(state, want_state, 4, 1e-6, 6e-8);
  });
}

TEST(Slstm, AgainstTheUnstabilisedDefinition) {
  for (const int64_t P : {1, 3, 16, 19})
    for (const int64_t H : {1, 3}) {
      const Inputs s{11, H, P};
      const auto want = reference(s, doubles(s.pre), doubles(s.r));
      on_every_target([&] {
        std::vector<float> state(at(4 * s.D())), y(at(s.T * s.D()));
        slstm(s.from(0, s.T, state.data(), y.data()));
        expect_near(y.data(), want.data(), s.T * s.D(), 0, 5e-6);
      });
    }
}

TEST(Slstm, BackwardAgainstDifferences) {
  for (const int64_t P : {1, 3, 17}) {
    const Inputs s{4, 2, P};
    const int64_t d = s.D();
    const auto pre = doubles(s.pre), r = doubles(s.r);
    const auto loss = [&](const std::vector<double>& at_pre) {
      const auto y = reference(s, at_pre, r);
      double sum = 0;
      for (size_t i = 0; i < y.size(); ++i) sum += y[i] * value(s.dy[static_cast<int64_t>(i)]);
      return sum;
    };
    std::vector<double> want;
    for (size_t i = 0; i < pre.size(); ++i) {
      auto up = pre, down = pre;
      up[i] += 1e-5;
      down[i] -= 1e-5;
      want.push_back((loss(up) - loss(down)) / 2e-5);
    }
    on_every_target([&] {
      std::vector<float> state(at(4 * d)), y(at(s.T * d)), gates(at(s.T * 4 * d)),
          cells(at(s.T * 3 * d)), dgates(gates.size());
      Slstm cell = s.from(0, s.T, state.data(), y.data());
      cell.gates = gates.data();
      cell.cells = cells.data();
      slstm(cell);
      slstm_backward({cell, s.dy.data(), dgates.data()}, 0, 1);
      slstm_backward({cell, s.dy.data(), dgates.data()}, 1, 2);
      expect_near(dgates.data(), want.data(), s.T * 4 * d, 1e-5, 1e-5);
    });
  }
}

TEST(Slstm, SameBitsForAnySplitAndThreads) {
  const Inputs s{20, 5, 6};
  on_every_target([&] {
    std::vector<float> whole(at(s.T * s.D())), split(whole.size()), a(at(4 * s.D()), 7);
    slstm(s.from(0, s.T, a.data(), whole.data()));
    for (const int64_t step : {1, 7, 19}) {
      const Threads scope(step == 7 ? 1 : 5);
      std::vector<float> b(a.size());
      for (int64_t t = 0; t < s.T; t += step)
        slstm(s.from(t, std::min(step, s.T - t), b.data(), split.data()));
      expect_same_bits(split.data(), whole.data(), s.T * s.D(), "y");
      expect_same_bits(b.data(), a.data(), 4 * s.D(), "state");
    }
  });
}

TEST(Slstm, HugeGatesStayFinite) {
  Inputs s{5, 1, 2};
  for (int64_t i = 0; i < s.pre.size(); ++i) s.pre[i] = i % 3 == 0 ? 500.0f : -500.0f;
  on_every_target([&] {
    std::vector<float> state(8), y(10);
    slstm(s.from(0, s.T, state.data(), y.data()));
    for (const float v : y) EXPECT_TRUE(std::isfinite(v));
  });
}

}  // namespace
}  // namespace tessera::kernels::slstm_test
