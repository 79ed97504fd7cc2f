#include "tessera/kernels/scan/mamba2.h"

#include "tessera/base/error.h"
#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::mamba2_test {
namespace {

TEST(SsdScan, SpecifiedValues) {
  const float x[] = {1, -1, 0.5, 2, -1, 0.5, 2, 1};
  const float B[] = {1, 0.5, -1, 2, 0.5, -0.5, 0, 1};
  const float C[] = {1, 1, 0.5, -1, 2, 0, -1, 1};
  const float dt[] = {0.5, 0.25, 1, 0.75};
  const float A[] = {-1};
  const double want[] = {0.75,        -0.75,       -0.3125,    -1.25,
                         -0.80546506, -0.15438424, 2.00369796, 0.80831146};
  const double want_state[] = {-0.19023738, 1.81346058, -0.03646298, 0.77184848};
  on_every_target([&] {
    float state[4] = {};
    float y[8];
    ssd_scan({4, 1, 2, 1, 2, x, dt, A, B, C, nullptr, state, y});
    expect_near(y, want, 8, 3e-7, 6e-9);
    expect_near(state, want_state, 4, 3e-7, 6e-9);
  });
}

struct Scan {
  int64_t T, H, P, G, N;
  Values x{T * H * P, 1}, dt{T * H, 2}, A{H, 3}, B{T * G * N, 4}, C{T * G * N, 5}, D{H, 6},
      state{H * P * N, 7};

  Scan(int64_t t, int64_t h, int64_t p, int64_t g, int64_t n) : T(t), H(h), P(p), G(g), N(n) {
    for (int64_t i = 0; i < T * H; ++i) dt[i] = std::abs(dt[i]);
    for (int64_t i = 0; i < H; ++i) A[i] = -std::abs(A[i]);
  }
  // tokens begin .. end
  void run(int64_t begin, int64_t end, float* s, float* y) const {
    ssd_scan({end - begin, H, P, G, N, x.data() + begin * H * P, dt.data() + begin * H, A.data(),
              B.data() + begin * G * N, C.data() + begin * G * N, D.data(), s, y + begin * H * P});
  }
};

TEST(SsdScan, OddSizesAgainstDouble) {
  for (const int64_t N : {1, 7, 8, 9, 63, 64, 65})
    for (const int64_t P : {1, 4, 7}) {
      const Scan s(9, 4, P, 2, N);
      std::vector<double> state(s.state.data(), s.state.data() + s.state.size());
      std::vector<double> want;
      for (int64_t t = 0; t < s.T; ++t)
        for (int64_t h = 0; h < s.H; ++h)
          for (int64_t p = 0; p < P; ++p) {
            const double dt = static_cast<double>(s.dt[t * s.H + h]);
            const double x = static_cast<double>(s.x[(t * s.H + h) * P + p]);
            double y = static_cast<double>(s.D[h]) * x;
            for (int64_t n = 0; n < N; ++n) {
              const int64_t bc = (t * s.G + h / 2) * N + n;
              double& v = state[at((h * P + p) * N + n)];
              v = std::exp(dt * static_cast<double>(s.A[h])) * v +
                  dt * x * static_cast<double>(s.B[bc]);
              y += v * static_cast<double>(s.C[bc]);
            }
            want.push_back(y);
          }
      on_every_target([&] {
        Values end_state = s.state;
        std::vector<float> y(want.size());
        s.run(0, s.T, end_state.data(), y.data());
        expect_near(y.data(), want.data(), static_cast<int64_t>(want.size()), 1e-6, 2e-5);
        expect_near(end_state.data(), state.data(), end_state.size(), 1e-6, 1e-6);
      });
    }
}

TEST(SsdScan, SameBitsForAnySplitAndThreads) {
  const Scan s(40, 3, 6, 1, 19);
  on_every_target([&] {
    const auto size = at(s.T * s.H * s.P);
    std::vector<float> whole(size), split(size);
    Values a = s.state;
    s.run(0, s.T, a.data(), whole.data());
    for (const int64_t step : {1, 7, 39}) {
      const Threads scope(step == 7 ? 1 : 5);
      Values b = s.state;
      for (int64_t t = 0; t < s.T; t += step)
        s.run(t, std::min(t + step, s.T), b.data(), split.data());
      expect_same_bits(split.data(), whole.data(), static_cast<int64_t>(size), "y");
      expect_same_bits(b.data(), a.data(), a.size(), "state");
    }
  });
}

TEST(SsdScan, RefusesBrokenShapes) {
  EXPECT_THROW(ssd_scan({1, 3, 1, 2, 1, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                         nullptr, nullptr}),
               Error);
}

}  // namespace
}  // namespace tessera::kernels::mamba2_test
