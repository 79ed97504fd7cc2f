#include "tessera/kernels/scan/rwkv4.h"

#include <algorithm>

#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::rwkv4_test {
namespace {

double value(float v) {
  return static_cast<double>(v);
}

struct Inputs {
  int64_t T, C;
  Values k{T * C, 1}, v{T * C, 2}, w{C, 3}, u{C, 4}, dy{T * C, 5};

  Inputs(int64_t t, int64_t c) : T(t), C(c) {
    for (int64_t i = 0; i < C; ++i) w[i] = -std::abs(w[i]) - 0.01f;
  }
  Wkv4 from(int64_t t, int64_t n, float* s, float* y, float* kept = nullptr) const {
    return {n,      C, w.data(),  u.data(), k.data() + t * C, v.data() + t * C,
            t == 0, s, y + t * C, kept};
  }
};

/// The sums as they are defined, O(T^2), and their derivatives, in double.
struct Reference {
  std::vector<double> y, dk, dv, dw, du;

  explicit Reference(const Inputs& s) : y(at(s.T * s.C)), dk(y), dv(y), dw(at(s.C)), du(at(s.C)) {
    for (int64_t c = 0; c < s.C; ++c)
      for (int64_t t = 0; t < s.T; ++t) {
        const auto weight = [&](int64_t i) {
          const double e = i < t ? static_cast<double>(t - 1 - i) * value(s.w[c]) : value(s.u[c]);
          return std::exp(e + value(s.k[i * s.C + c]));
        };
        double num = 0, den = 0;
        for (int64_t i = 0; i <= t; ++i) {
          num += weight(i) * value(s.v[i * s.C + c]);
          den += weight(i);
        }
        double& out = y[at(t * s.C + c)];
        out = num / den;
        for (int64_t i = 0; i <= t; ++i) {
          const double share = weight(i) / den * value(s.dy[t * s.C + c]);
          const double through = share * (value(s.v[i * s.C + c]) - out);
          dv[at(i * s.C + c)] += share;
          dk[at(i * s.C + c)] += through;
          if (i < t)
            dw[at(c)] += static_cast<double>(t - 1 - i) * through;
          else
            du[at(c)] += through;
        }
      }
  }
};

void expect_close(const std::vector<float>& got,
                  const std::vector<double>& want,
                  double tolerance,
                  const char* what) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 1e-6, worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    worst = std::max(worst, std::isfinite(got[i]) ? std::abs(value(got[i]) - want[i]) : 1e30);
  }
  EXPECT_LE(worst, tolerance * largest) << what;
}

const float kW[] = {-0.36787944f, -1.64872127f}, kU[] = {0.3f, -0.2f};
const float kV[] = {1, -1, 2, 0.5, -1, 3, 0.5, 1};

TEST(Wkv4, SpecifiedValues) {
  const float k[] = {0.1f, 1, -0.5, 0.2f, 2, -1, 0.7f, 0};
  const double want[] = {1,           -1,         1.42555748,  -0.59658787,
                         -0.70477026, 0.48480177, -0.42152674, 1.27417447};
  const double want_state[] = {-0.61783790, 1.21547842, 1.52220177, 1.13523488, 1.63212056, 0};
  const float dy[] = {1, 0.5, -1, 1, 0.5, 2, 1, -1};
  const double dk[] = {0.37001198,  -0.90365943, -0.08021192, 0.43253838,
                       -0.51635650, 0.32363377,  0.22655644,  0.14748727};
  const double dv[] = {0.50716315, 1.67615048, -0.36085639, 1.30896851,
                       1.10784423, 0.05281320, 0.24584901,  -0.53793219};
  const double du[] = {-0.14767227, 1.18318567};
  // d time_decay = w dw
  const double dw[] = {-0.10506024 / -0.36787944, 0.55905184 / -1.64872127};
  on_every_target([&] {
    float state[6] = {9, 9, 9, 9, 9, 9}, y[8], kept[6];
    wkv4({4, 2, kW, kU, k, kV, true, state, y, kept});
    expect_near(y, want, 8, 1e-6, 1e-7);
    expect_near(state, want_state, 6, 1e-6, 2e-7);
    float got_dk[8], got_dv[8], got_dw[2] = {}, got_du[2] = {};
    wkv4_backward(
        {{4, 2, kW, kU, k, kV, true, nullptr, y, kept}, dy, got_dk, got_dv, got_dw, got_du}, 0, 2);
    expect_near(got_dk, dk, 8, 2e-6, 2e-7);
    expect_near(got_dv, dv, 8, 2e-6, 2e-7);
    expect_near(got_dw, dw, 2, 2e-6, 2e-7);
    expect_near(got_du, du, 2, 2e-6, 2e-7);
  });
}

TEST(Wkv4, AHugeKeyTakesOver) {
  const float k[] = {0.1f, 1, 800, 0.2f, 2, -1, 0.7f, 0};
  const double want[] = {1, -1, 2, -0.59658787, 2, 0.48480177, 2, 1.27417447};
  const float dy[] = {1, 1, 1, 1, 1, 1, 1, 1};
  on_every_target([&] {
    float state[6] = {}, y[8], kept[6], dk[8], dv[8], dw[2] = {}, du[2] = {};
    wkv4({4, 2, kW, kU, k, kV, true, state, y, kept});
    expect_near(y, want, 8, 1e-6, 1e-7);
    wkv4_backward({{4, 2, kW, kU, k, kV, true, nullptr, y, kept}, dy, dk, dv, dw, du}, 0, 2);
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(std::isfinite(dk[i]) && std::isfinite(dv[i]));
    EXPECT_NEAR(dv[2], 3, 1e-6);  // the huge key's value is all that the last three outputs see
  });
}

TEST(Wkv4, OddSizesAgainstTheDefinition) {
  for (const int64_t C : {1, 7, 16, 17, 40})
    for (const int64_t T : {1, 31, 32, 33, 70}) {
      const Inputs s(T, C);
      const Reference want(s);
      on_every_target([&] {
        std::vector<float> state(at(3 * C)), y(at(T * C)), kept(at((T + 31) / 32 * 3 * C));
        wkv4(s.from(0, T, state.data(), y.data(), kept.data()));
        expect_close(y, want.y, 3e-6, "y");
        std::vector<float> dk(y.size()), dv(y.size()), dw(at(C)), du(at(C));
        const int64_t middle = std::min<int64_t>(C, 5);
        for (const auto& [begin, end] : {std::pair{int64_t{0}, middle}, std::pair{middle, C}})
          wkv4_backward({s.from(0, T, nullptr, y.data(), kept.data()), s.dy.data(), dk.data(),
                         dv.data(), dw.data(), du.data()},
                        begin, end);
        expect_close(dk, want.dk, 2e-5, "dk");
        expect_close(dv, want.dv, 1e-5, "dv");
        expect_close(dw, want.dw, 3e-5, "dw");
        expect_close(du, want.du, 2e-5, "du");
      });
    }
}

TEST(Wkv4, SameBitsForAnySplitAndThreads) {
  const Inputs s(40, 45);
  on_every_target([&] {
    std::vector<float> whole(at(s.T * s.C)), split(whole.size());
    std::vector<float> a(at(3 * s.C), 7);
    wkv4(s.from(0, s.T, a.data(), whole.data()));
    for (const int64_t step : {1, 7, 39}) {
      const Threads scope(step == 7 ? 1 : 5);
      std::vector<float> b(at(3 * s.C));
      for (int64_t t = 0; t < s.T; t += step)
        wkv4(s.from(t, std::min(step, s.T - t), b.data(), split.data()));
      expect_same_bits(split.data(), whole.data(), s.T * s.C, "y");
      expect_same_bits(b.data(), a.data(), 3 * s.C, "state");
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::rwkv4_test
