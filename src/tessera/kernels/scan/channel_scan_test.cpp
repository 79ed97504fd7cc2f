#include "tessera/kernels/scan/channel_scan.h"

#include <algorithm>

#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::channel_scan_test {
namespace {

double value(float v) {
  return static_cast<double>(v);
}

struct Inputs {
  int64_t T, W;
  Values a{T * W, 1}, b{T * W, 2}, state{W, 3}, dy{T * W, 4}, dstate{W, 5};

  Inputs(int64_t t, int64_t w) : T(t), W(w) {
    for (int64_t i = 0; i < T * W; ++i) a[i] = 1 / (1 + std::exp(-a[i]));
  }
  ChannelScan from(int64_t t, int64_t n, float* s, float* y) const {
    return {n, W, a.data() + t * W, b.data() + t * W, s, y + t * W};
  }
};

/// The recurrence and its adjoint, token after token in double.
struct Reference {
  std::vector<double> y, state, da, db, dstate;

  explicit Reference(const Inputs& s, bool zeros = false)
      : y(at(s.T * s.W)), state(at(s.W)), da(y), db(y), dstate(state) {
    for (int64_t c = 0; c < s.W; ++c) {
      double h = zeros ? 0 : value(s.state[c]), carry = value(s.dstate[c]);
      for (int64_t i = c; i < s.T * s.W; i += s.W) y[at(i)] = h = value(s.a[i]) * h + value(s.b[i]);
      state[at(c)] = h;
      for (int64_t i = (s.T - 1) * s.W + c; i >= 0; i -= s.W) {
        const double first = zeros ? 0 : value(s.state[c]);
        const double g = value(s.dy[i]) + carry, before = i < s.W ? first : y[at(i - s.W)];
        db[at(i)] = g, da[at(i)] = g * before, carry = g * value(s.a[i]);
      }
      dstate[at(c)] = carry;
    }
  }
};

void expect_close(const std::vector<float>& got,
                  const std::vector<double>& want,
                  const char* what) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0, worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    worst = std::max(worst, std::isfinite(got[i]) ? std::abs(value(got[i]) - want[i]) : 1e30);
  }
  EXPECT_LE(worst, 1e-6 * largest) << what;
}

TEST(ChannelScan, OddSizesAgainstDouble) {
  for (const int64_t W : {1, 7, 16, 17, 40})
    for (const int64_t T : {1, 2, 33}) {
      const Inputs s(T, W);
      const Reference want(s);
      on_every_target([&] {
        std::vector<float> state(s.state.data(), s.state.data() + W), y(at(T * W));
        channel_scan(s.from(0, T, state.data(), y.data()));
        expect_close(y, want.y, "y");
        expect_close(state, want.state, "state");
      });
    }
}

TEST(ChannelScan, SameBitsForAnySplitAndThreads) {
  const Inputs s(40, 45);
  on_every_target([&] {
    std::vector<float> whole(at(s.T * s.W)), split(whole.size());
    Values a = s.state;
    channel_scan(s.from(0, s.T, a.data(), whole.data()));
    for (const int64_t step : {1, 7, 39}) {
      const Threads scope(step == 7 ? 1 : 5);
      Values b = s.state;
      for (int64_t t = 0; t < s.T; t += step)
        channel_scan(s.from(t, std::min(step, s.T - t), b.data(), split.data()));
      expect_same_bits(split.data(), whole.data(), s.T * s.W, "y");
      expect_same_bits(b.data(), a.data(), a.size(), "state");
    }
  });
}

TEST(ChannelScan, BackwardAgainstDouble) {
  for (const int64_t W : {1, 7, 17})
    for (const int64_t T : {1, 2, 33})
      for (const bool zeros : {false, true}) {
        const Inputs s(T, W);
        const Reference want(s, zeros);
        on_every_target([&] {
          std::vector<float> state(at(W)), y(at(T * W)), da(y), db(y);
          if (!zeros) state.assign(s.state.data(), s.state.data() + W);
          channel_scan(s.from(0, T, state.data(), y.data()));
          std::vector<float> dstate(s.dstate.data(), s.dstate.data() + W);
          const int64_t middle = std::min<int64_t>(W, 5);
          for (const auto& [begin, end] : {std::pair{int64_t{0}, middle}, std::pair{middle, W}})
            channel_scan_backward(
                {T, W, s.a.data(), y.data(), s.dy.data(), zeros ? nullptr : s.state.data(),
                 da.data(), db.data(), dstate.data()},
                begin, end);
          expect_close(da, want.da, "da");
          expect_close(db, want.db, "db");
          expect_close(dstate, want.dstate, "d state");
        });
      }
}

}  // namespace
}  // namespace tessera::kernels::channel_scan_test
