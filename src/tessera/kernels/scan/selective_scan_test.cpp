#include "tessera/kernels/scan/selective_scan.h"

#include <algorithm>

#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::selective_scan_test {
namespace {

/// Inputs of a scan and its definition in double.
struct Scan {
  int64_t T, E, N;
  Values x{T * E, 1}, dt{T * E, 2}, bias{E, 3}, A{N * E, 4}, B{T * N, 5}, C{T * N, 6}, D{E, 7},
      state{N * E, 8}, dy{T * E, 9};

  Scan(int64_t t, int64_t e, int64_t n) : T(t), E(e), N(n) {
    for (int64_t i = 0; i < N * E; ++i) A[i] = -std::abs(A[i]);
  }
  SelectiveScan from(int64_t t, int64_t n, float* s, float* y, float* kept = nullptr) const {
    return {n,
            E,
            N,
            x.data() + t * E,
            dt.data() + t * E,
            bias.data(),
            A.data(),
            B.data() + t * N,
            C.data() + t * N,
            D.data(),
            s,
            y + t * E,
            kept};
  }
};

double softplus(double v) {
  return std::max(v, 0.0) + std::log1p(std::exp(-std::abs(v)));
}
double value(float v) {
  return static_cast<double>(v);
}

/// The recurrence and, where `gradient` is asked for, its adjoint, token after token in double.
struct Reference {
  std::vector<double> y, state, dx, ddt, bias, dA, dB, dC, dD;

  Reference(const Scan& s, std::vector<double> start, bool gradient) : state(std::move(start)) {
    y.assign(at(s.T * s.E), 0);
    std::vector<double> states;  // before each token
    const auto delta = [&](int64_t t, int64_t e) {
      return softplus(value(s.dt[t * s.E + e]) + value(s.bias[e]));
    };
    for (int64_t t = 0; t < s.T; ++t) {
      states.insert(states.end(), state.begin(), state.end());
      for (int64_t e = 0; e < s.E; ++e) {
        double& out = y[at(t * s.E + e)];
        out = value(s.D[e]) * value(s.x[t * s.E + e]);
        for (int64_t n = 0; n < s.N; ++n) {
          double& h = state[at(n * s.E + e)];
          h = std::exp(delta(t, e) * value(s.A[n * s.E + e])) * h +
              delta(t, e) * value(s.x[t * s.E + e]) * value(s.B[t * s.N + n]);
          out += h * value(s.C[t * s.N + n]);
        }
      }
    }
    if (!gradient) return;
    dx = ddt = std::vector<double>(at(s.T * s.E));
    bias = dD = std::vector<double>(at(s.E));
    dA = std::vector<double>(at(s.N * s.E));
    dB = dC = std::vector<double>(at(s.T * s.N));
    std::vector<double> carry(at(s.N * s.E));
    for (int64_t t = s.T - 1; t >= 0; --t)
      for (int64_t e = 0; e < s.E; ++e) {
        const double d = delta(t, e), x = value(s.x[t * s.E + e]), dy = value(s.dy[t * s.E + e]);
        double ddelta = 0;
        for (int64_t n = 0; n < s.N; ++n) {
          const double a = value(s.A[n * s.E + e]), decay = std::exp(d * a);
          const double before = states[at((t * s.N + n) * s.E + e)];
          const double b = value(s.B[t * s.N + n]);
          double& hold = carry[at(n * s.E + e)];
          const double g = value(s.C[t * s.N + n]) * dy + hold;
          dC[at(t * s.N + n)] += (decay * before + d * x * b) * dy;
          dB[at(t * s.N + n)] += g * d * x;
          dx[at(t * s.E + e)] += g * d * b;
          ddelta += g * (before * decay * a + x * b);
          dA[at(n * s.E + e)] += g * before * decay * d;
          hold = g * decay;
        }
        dx[at(t * s.E + e)] += value(s.D[e]) * dy;
        dD[at(e)] += x * dy;
        const double raw = value(s.dt[t * s.E + e]) + value(s.bias[e]);
        ddt[at(t * s.E + e)] = ddelta / (1 + std::exp(-raw));
        bias[at(e)] += ddt[at(t * s.E + e)];
      }
  }
};

/// Largest error relative to the largest wanted value.
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

constexpr int64_t kLengths[] = {1, 31, 32, 33, 70};

TEST(SelectiveScan, OddSizesAgainstDouble) {
  for (const int64_t E : {1, 7, 16, 17, 40})
    for (const int64_t N : {1, 2, 16})
      for (const int64_t T : kLengths) {
        const Scan s(T, E, N);
        const Reference want(s, {s.state.data(), s.state.data() + s.state.size()}, false);
        on_every_target([&] {
          std::vector<float> state(s.state.data(), s.state.data() + s.state.size()), y(at(T * E));
          selective_scan(s.from(0, T, state.data(), y.data()));
          expect_close(y, want.y, 2e-6, "y");
          expect_close(state, want.state, 2e-6, "state");
        });
      }
}

TEST(SelectiveScan, SameBitsForAnySplitAndThreads) {
  const Scan s(80, 45, 5);
  on_every_target([&] {
    std::vector<float> whole(at(s.T * s.E)), split(whole.size());
    Values a = s.state;
    selective_scan(s.from(0, s.T, a.data(), whole.data()));
    for (const int64_t step : {1, 7, 33, 79}) {
      const Threads scope(step == 7 ? 1 : 5);
      Values b = s.state;
      for (int64_t t = 0; t < s.T; t += step)
        selective_scan(s.from(t, std::min(step, s.T - t), b.data(), split.data()));
      expect_same_bits(split.data(), whole.data(), s.T * s.E, "y");
      expect_same_bits(b.data(), a.data(), a.size(), "state");
    }
  });
}

TEST(SelectiveScan, BackwardAgainstDouble) {
  for (const int64_t E : {1, 7, 17, 40})
    for (const int64_t T : kLengths) {
      constexpr int64_t kN = 3;
      const Scan s(T, E, kN);
      const Reference want(s, std::vector<double>(at(kN * E)), true);
      on_every_target([&] {
        const int64_t chunks = (T + kSelectiveScanChunk - 1) / kSelectiveScanChunk;
        std::vector<float> state(at(kN * E)), y(at(T * E)), kept(at(chunks * kN * E));
        selective_scan(s.from(0, T, state.data(), y.data(), kept.data()));
        // two calls over disjoint channels; the sums over channels are added here
        std::vector<float> dx(at(T * E)), ddt(at(T * E)), bias(at(E)), dA(at(kN * E)), dD(at(E));
        std::vector<float> dB(at(2 * T * kN), -7), dC(at(2 * T * kN), -7);
        const int64_t middle = E > 16 ? 16 : E;
        for (int64_t call = 0; call < 2; ++call)
          selective_scan_backward({s.from(0, T, nullptr, y.data(), kept.data()), s.dy.data(),
                                   dx.data(), ddt.data(), bias.data(), dA.data(), dD.data(),
                                   dB.data() + call * T * kN, dC.data() + call * T * kN},
                                  call == 0 ? 0 : middle, call == 0 ? middle : E);
        for (int64_t i = 0; i < T * kN; ++i) {
          dB[at(i)] += dB[at(T * kN + i)];
          dC[at(i)] += dC[at(T * kN + i)];
        }
        dB.resize(at(T * kN));
        dC.resize(at(T * kN));
        expect_close(dx, want.dx, 1e-5, "dx");
        expect_close(ddt, want.ddt, 1e-5, "d dt");
        expect_close(bias, want.bias, 1e-5, "d bias");
        expect_close(dA, want.dA, 1e-5, "dA");
        expect_close(dB, want.dB, 1e-5, "dB");
        expect_close(dC, want.dC, 1e-5, "dC");
        expect_close(dD, want.dD, 1e-5, "dD");
      });
    }
}

TEST(SelectiveScan, AHugeStepOrNaNOfOneChannelLeavesTheOthersAlone) {
  constexpr int64_t kHuge = 4, kNan = 9;
  const Scan plain(40, 21, 3);
  Scan s = plain;
  for (int64_t t = 0; t < s.T; t += 3) s.dt[t * s.E + kHuge] = 1e3f;
  const Reference want(s, std::vector<double>(at(s.N * s.E)), true);
  Scan broken = s;
  broken.A[s.E + kNan] = NAN;
  on_every_target([&] {
    const auto run = [&](const Scan& scan, std::vector<float>& y, float* kept) {
      std::vector<float> state(at(s.N * s.E));
      y.resize(at(s.T * s.E));
      selective_scan(scan.from(0, s.T, state.data(), y.data(), kept));
    };
    std::vector<float> y, y_plain, y_broken, kept(at(2 * s.N * s.E));
    run(plain, y_plain, nullptr);
    run(broken, y_broken, nullptr);
    run(s, y, kept.data());
    expect_close(y, want.y, 2e-6, "y");
    for (int64_t t = 0; t < s.T; ++t)
      for (int64_t e = 0; e < s.E; ++e) {
        const int64_t i = t * s.E + e;
        if (e != kHuge) expect_same_bits(&y[at(i)], &y_plain[at(i)], 1, "beside a huge step");
        if (e != kNan)
          expect_same_bits(&y_broken[at(i)], &y[at(i)], 1, "beside NaN");
        else
          EXPECT_TRUE(std::isnan(y_broken[at(i)]));
      }
    std::vector<float> dx(y), ddt(y), bias(at(s.E)), dA(at(s.N * s.E)), dD(at(s.E)),
        dB(at(s.T * s.N)), dC(dB);
    selective_scan_backward({s.from(0, s.T, nullptr, y.data(), kept.data()), s.dy.data(), dx.data(),
                             ddt.data(), bias.data(), dA.data(), dD.data(), dB.data(), dC.data()},
                            0, s.E);
    expect_close(dx, want.dx, 1e-5, "dx");
    expect_close(ddt, want.ddt, 1e-5, "d dt");
    expect_close(dA, want.dA, 1e-5, "dA");
    expect_close(dB, want.dB, 1e-5, "dB");
  });
}

TEST(SelectiveScan, HugeStepsForgetAndTinyOnesKeep) {
  Scan s(3, 5, 2);
  for (int64_t e = 0; e < s.E; ++e)
    for (int64_t t = 0; t < s.T; ++t) s.dt[t * s.E + e] = e == 0 ? 1e6f : -1e6f;
  on_every_target([&] {
    std::vector<float> state(at(s.N * s.E), 2), y(at(s.T * s.E));
    selective_scan(s.from(0, s.T, state.data(), y.data()));
    for (int64_t n = 0; n < s.N; ++n) {
      EXPECT_TRUE(std::isfinite(state[at(n * s.E)]));
      for (int64_t e = 1; e < s.E; ++e) EXPECT_EQ(state[at(n * s.E + e)], 2);
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::selective_scan_test
