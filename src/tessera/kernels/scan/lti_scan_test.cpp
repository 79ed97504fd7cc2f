#include "tessera/kernels/scan/lti_scan.h"

#include <algorithm>
#include <complex>

#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::lti_scan_test {
namespace {

using Complex = std::complex<double>;

double value(float v) {
  return static_cast<double>(v);
}

struct System {
  int64_t T, H, M;
  bool rank_one;
  Values u{T * H, 1}, decay{2 * M * H, 2, 0.3}, gain{2 * M * H, 3}, out{2 * M * H, 4}, skip{H, 5},
      row{2 * M * H, 6, 0.2}, column{2 * M * H, 7, 0.2}, feedback{H, 8, 0.5}, state{2 * M * H, 9};

  LtiScan from(int64_t t, int64_t n, float* s, float* y) const {
    return {n,
            H,
            M,
            u.data() + t * H,
            decay.data(),
            rank_one ? gain.data() : nullptr,
            out.data(),
            skip.data(),
            rank_one ? row.data() : nullptr,
            rank_one ? column.data() : nullptr,
            rank_one ? feedback.data() : nullptr,
            s,
            y + t * H};
  }
  Complex of(const Values& v, int64_t m, int64_t c) const {
    return {value(v[m * H + c]), value(v[(M + m) * H + c])};
  }
};

/// Token after token in double, with whole vectors of conjugate pairs.
void reference(const System& s, std::vector<double>& state, std::vector<double>& y) {
  for (int64_t c = 0; c < s.H; ++c) {
    std::vector<Complex> x(at(s.M));
    for (int64_t m = 0; m < s.M; ++m) x[at(m)] = s.of(s.state, m, c);
    const auto along = [&] {
      Complex sum = 0;
      for (int64_t m = 0; m < s.M; ++m) {
        const Complex term = std::conj(s.of(s.row, m, c)) * x[at(m)];
        sum += term + std::conj(term);
      }
      return sum.real();
    };
    for (int64_t t = 0; t < s.T; ++t) {
      const double u = value(s.u[t * s.H + c]);
      const double before = s.rank_one ? along() : 0;
      for (int64_t m = 0; m < s.M; ++m) {
        x[at(m)] = s.of(s.decay, m, c) * x[at(m)] + (s.rank_one ? s.of(s.gain, m, c) : 1.0) * u;
        if (s.rank_one) x[at(m)] -= s.of(s.column, m, c) * before;
      }
      const double after = s.rank_one ? value(s.feedback[c]) * along() : 0;
      double out = value(s.skip[c]) * u;
      for (int64_t m = 0; m < s.M; ++m) {
        if (s.rank_one) x[at(m)] -= s.of(s.column, m, c) * after;
        out += 2 * (s.of(s.out, m, c) * x[at(m)]).real();
      }
      y[at(t * s.H + c)] = out;
    }
    for (int64_t m = 0; m < s.M; ++m) {
      state[at(m * s.H + c)] = x[at(m)].real();
      state[at((s.M + m) * s.H + c)] = x[at(m)].imag();
    }
  }
}

TEST(LtiScan, OddSizesAgainstDouble) {
  for (const bool rank_one : {false, true})
    for (const int64_t H : {1, 7, 16, 17, 40})
      for (const int64_t M : {1, 3}) {
        const System s{12, H, M, rank_one};
        std::vector<double> state(at(2 * M * H)), y(at(s.T * H));
        reference(s, state, y);
        on_every_target([&] {
          std::vector<float> got_state(s.state.data(), s.state.data() + s.state.size());
          std::vector<float> got(y.size());
          lti_scan(s.from(0, s.T, got_state.data(), got.data()));
          double largest = 1;
          for (const double v : y) largest = std::max(largest, std::abs(v));
          expect_near(got.data(), y.data(), s.T * H, 0, 4e-6 * largest);
          expect_near(got_state.data(), state.data(), 2 * M * H, 0, 4e-6 * largest);
        });
      }
}

TEST(LtiScan, SameBitsForAnySplitAndThreads) {
  for (const bool rank_one : {false, true}) {
    const System s{30, 45, 3, rank_one};
    on_every_target([&] {
      std::vector<float> whole(at(s.T * s.H)), split(whole.size());
      Values a = s.state;
      lti_scan(s.from(0, s.T, a.data(), whole.data()));
      for (const int64_t step : {1, 7, 29}) {
        const Threads scope(step == 7 ? 1 : 5);
        Values b = s.state;
        for (int64_t t = 0; t < s.T; t += step)
          lti_scan(s.from(t, std::min(step, s.T - t), b.data(), split.data()));
        expect_same_bits(split.data(), whole.data(), s.T * s.H, "y");
        expect_same_bits(b.data(), a.data(), a.size(), "state");
      }
    });
  }
}

struct Dense {
  int64_t T, H, N;
  Values u{T * H, 1}, matrix{N * N * H, 2, 0.2}, gain{N * H, 3}, out{N * H, 4}, skip{H, 5},
      state{N * H, 6};

  DenseLtiScan from(int64_t t, int64_t n, float* s, float* y) const {
    return {n,          H,           N, u.data() + t * H, matrix.data(), gain.data(),
            out.data(), skip.data(), s, y + t * H};
  }
};

TEST(DenseLtiScan, OddSizesAgainstDouble) {
  for (const int64_t H : {1, 7, 16, 17, 40})
    for (const int64_t N : {2, 6}) {
      const Dense s{12, H, N};
      std::vector<double> state(at(N * H)), y(at(s.T * H));
      for (int64_t c = 0; c < H; ++c) {
        std::vector<double> x(at(N)), next(at(N));
        for (int64_t i = 0; i < N; ++i) x[at(i)] = value(s.state[i * H + c]);
        for (int64_t t = 0; t < s.T; ++t) {
          const double u = value(s.u[t * H + c]);
          double out = value(s.skip[c]) * u;
          for (int64_t i = 0; i < N; ++i) {
            next[at(i)] = value(s.gain[i * H + c]) * u;
            for (int64_t j = 0; j < N; ++j)
              next[at(i)] += value(s.matrix[(i * N + j) * H + c]) * x[at(j)];
            out += value(s.out[i * H + c]) * next[at(i)];
          }
          x = next;
          y[at(t * H + c)] = out;
        }
        for (int64_t i = 0; i < N; ++i) state[at(i * H + c)] = x[at(i)];
      }
      on_every_target([&] {
        std::vector<float> got_state(s.state.data(), s.state.data() + s.state.size());
        std::vector<float> got(y.size());
        dense_lti_scan(s.from(0, s.T, got_state.data(), got.data()));
        double largest = 1;
        for (const double v : y) largest = std::max(largest, std::abs(v));
        expect_near(got.data(), y.data(), s.T * H, 0, 4e-6 * largest);
        expect_near(got_state.data(), state.data(), N * H, 0, 4e-6 * largest);
      });
    }
}

TEST(DenseLtiScan, SameBitsForAnySplitAndThreads) {
  const Dense s{30, 45, 4};
  on_every_target([&] {
    std::vector<float> whole(at(s.T * s.H)), split(whole.size());
    Values a = s.state;
    dense_lti_scan(s.from(0, s.T, a.data(), whole.data()));
    for (const int64_t step : {1, 7, 29}) {
      const Threads scope(step == 7 ? 1 : 5);
      Values b = s.state;
      for (int64_t t = 0; t < s.T; t += step)
        dense_lti_scan(s.from(t, std::min(step, s.T - t), b.data(), split.data()));
      expect_same_bits(split.data(), whole.data(), s.T * s.H, "y");
      expect_same_bits(b.data(), a.data(), a.size(), "state");
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::lti_scan_test
