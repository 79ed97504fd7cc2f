#include "tessera/kernels/scan/rg_lru.h"

#include <algorithm>

#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::rg_lru_test {
namespace {

double value(float v) {
  return static_cast<double>(v);
}
double sigmoid(double v) {
  return 1 / (1 + std::exp(-v));
}

struct Inputs {
  int64_t T, W;
  Values x{T * W, 1}, in{T * W, 2}, rec{T * W, 3}, scale{W, 4}, state{W, 5}, dy{T * W, 6};

  Inputs(int64_t t, int64_t w) : T(t), W(w) {
    for (int64_t i = 0; i < W; ++i) scale[i] = std::abs(scale[i]) + 0.01f;
  }
  RgLru from(int64_t t, int64_t n, bool fresh, float* s, float* y) const {
    return {n,     W, x.data() + t * W, in.data() + t * W, rec.data() + t * W, scale.data(),
            fresh, s, y + t * W};
  }
};

/// The recurrence and its adjoint, token after token in double.
struct Reference {
  std::vector<double> y, state, dx, din, drec, dscale;

  Reference(const Inputs& s, bool fresh)
      : y(at(s.T * s.W)), state(at(s.W)), dx(y), din(y), drec(y), dscale(at(s.W)) {
    for (int64_t c = 0; c < s.W; ++c) {
      std::vector<double> a(at(s.T)), m(at(s.T)), h(at(s.T + 1));
      h[0] = fresh ? 0 : value(s.state[c]);
      for (int64_t t = 0; t < s.T; ++t) {
        const int64_t i = t * s.W + c;
        const double l = -value(s.scale[c]) * sigmoid(value(s.rec[i]));
        const bool first = fresh && t == 0;
        a[at(t)] = first ? 0 : std::exp(l);
        m[at(t)] = first ? 1 : std::sqrt(-std::expm1(2 * l));
        h[at(t + 1)] = a[at(t)] * h[at(t)] + m[at(t)] * sigmoid(value(s.in[i])) * value(s.x[i]);
        y[at(i)] = h[at(t + 1)];
      }
      state[at(c)] = h[at(s.T)];
      double carry = 0;
      for (int64_t t = s.T - 1; t >= 0; --t) {
        const int64_t i = t * s.W + c;
        const double g = value(s.dy[i]) + carry, in = sigmoid(value(s.in[i]));
        const double r = sigmoid(value(s.rec[i])), u = in * value(s.x[i]);
        carry = a[at(t)] * g;
        dx[at(i)] = m[at(t)] * g * in;
        din[at(i)] = m[at(t)] * g * u * (1 - in);
        if (fresh && t == 0) continue;
        const double dl = carry * h[at(t)] - g * u * a[at(t)] * a[at(t)] / m[at(t)];
        drec[at(i)] = -value(s.scale[c]) * dl * r * (1 - r);
        dscale[at(c)] -= r * dl;
      }
    }
  }
};

void expect_close(const std::vector<float>& got,
                  const std::vector<double>& want,
                  double tolerance,
                  const char* what) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0, worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    worst = std::max(worst, std::isfinite(got[i]) ? std::abs(value(got[i]) - want[i]) : 1e30);
  }
  EXPECT_LE(worst, tolerance * largest) << what;
}

TEST(RgLru, OddSizesAgainstDouble) {
  for (const int64_t W : {1, 7, 16, 17, 40})
    for (const int64_t T : {1, 2, 33})
      for (const bool fresh : {false, true}) {
        const Inputs s(T, W);
        const Reference want(s, fresh);
        on_every_target([&] {
          std::vector<float> state(s.state.data(), s.state.data() + W), y(at(T * W));
          rg_lru(s.from(0, T, fresh, state.data(), y.data()));
          expect_close(y, want.y, 2e-6, "y");
          expect_close(state, want.state, 2e-6, "state");
        });
      }
}

TEST(RgLru, SameBitsForAnySplitAndThreads) {
  const Inputs s(40, 45);
  on_every_target([&] {
    std::vector<float> whole(at(s.T * s.W)), split(whole.size());
    Values a = s.state;
    rg_lru(s.from(0, s.T, true, a.data(), whole.data()));
    for (const int64_t step : {1, 7, 39}) {
      const Threads scope(step == 7 ? 1 : 5);
      Values b = s.state;
      for (int64_t t = 0; t < s.T; t += step)
        rg_lru(s.from(t, std::min(step, s.T - t), t == 0, b.data(), split.data()));
      expect_same_bits(split.data(), whole.data(), s.T * s.W, "y");
      expect_same_bits(b.data(), a.data(), a.size(), "state");
    }
  });
}

TEST(RgLru, BackwardAgainstDouble) {
  for (const int64_t W : {1, 7, 17})
    for (const int64_t T : {1, 2, 33}) {
      const Inputs s(T, W);
      const Reference want(s, true);
      on_every_target([&] {
        std::vector<float> state(at(W)), y(at(T * W)), dx(y), din(y), drec(y), dscale(at(W));
        rg_lru(s.from(0, T, true, state.data(), y.data()));
        const int64_t middle = std::min<int64_t>(W, 5);
        for (const auto& [begin, end] : {std::pair{int64_t{0}, middle}, std::pair{middle, W}})
          rg_lru_backward({s.from(0, T, true, nullptr, y.data()), s.dy.data(), dx.data(),
                           din.data(), drec.data(), dscale.data()},
                          begin, end);
        expect_close(dx, want.dx, 1e-5, "dx");
        expect_close(din, want.din, 1e-5, "d in");
        if (T == 1) {  // a first token forgets: its gate has no say
          EXPECT_EQ(drec, std::vector<float>(at(W)));
          return;
        }
        expect_close(drec, want.drec, 1e-5, "d rec");
        expect_close(dscale, want.dscale, 1e-5, "d scale");
      });
    }
}

TEST(RgLru, AFrozenStateHasABoundedGradient) {
  Inputs s(3, 2);
  for (int64_t i = 0; i < s.T * s.W; ++i) {
    s.rec[i] = i % 2 == 0 ? -60.0f : 60.0f;  // a = 1, and a as small as scale allows
    s.x[i] = s.dy[i] = 1;
  }
  s.scale[1] = 200;
  on_every_target([&] {
    std::vector<float> state(2), y(6), dx(6), din(6), drec(6), dscale(2);
    rg_lru(s.from(0, 3, true, state.data(), y.data()));
    EXPECT_EQ(y[4], y[0]);  // frozen from the first token on
    rg_lru_backward({s.from(0, 3, true, nullptr, y.data()), s.dy.data(), dx.data(), din.data(),
                     drec.data(), dscale.data()},
                    0, 2);
    for (const auto* list : {&y, &dx, &din, &drec, &dscale})
      for (const float v : *list) EXPECT_TRUE(std::isfinite(v));
  });
}

}  // namespace
}  // namespace tessera::kernels::rg_lru_test
