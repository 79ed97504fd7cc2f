#include "tessera/kernels/linear/performer.h"

#include <algorithm>

#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::performer_test {
namespace {

struct Inputs {
  int64_t T, H, K, M, V;
  Values q{T * H * K, 1, 0.7}, k{T * H * K, 2, 0.7}, v{T * H * V, 3}, qs{T * H * M, 4, 2},
      ks{T * H * M, 5, 2};

  FavorScan scan(int64_t begin, int64_t end, std::vector<float>& state, float* out) const {
    FavorScan f;
    f.T = end - begin, f.H = H, f.K = K, f.M = M, f.V = V;
    f.q = q.data() + begin * H * K, f.k = k.data() + begin * H * K, f.v = v.data() + begin * H * V;
    f.q_scores = qs.data() + begin * H * M, f.k_scores = ks.data() + begin * H * M;
    f.eps = 1e-3f, f.factor = 1 / static_cast<float>(M);
    f.sums = state.data(), f.values = f.sums + H * M * (V + 1), f.maximum = f.values + H * (V + 1);
    f.out = out + begin * H * V;
    return f;
  }
  std::vector<float> no_state() const { return std::vector<float>(at(H * (M + 1) * (V + 1) + H)); }

  /// The definition: all products of features, in double; keys 0 .. i or all.
  std::vector<double> want(bool causal, bool exponential, bool rectified = true) const {
    const auto d = [](float x) { return static_cast<double>(x); };
    const double eps = d(1e-3f);
    const auto half = [&](const Values& x, int64_t t, int64_t h) {
      double sum = 0;
      for (int64_t c = 0; c < K; ++c) sum += d(x[(t * H + h) * K + c]) * d(x[(t * H + h) * K + c]);
      return sum / 2;
    };
    const auto largest = [&](const Values& s, int64_t t, int64_t h) {
      double best = -1e300;
      for (int64_t r = 0; r < M; ++r) best = std::max(best, d(s[(t * H + h) * M + r]));
      return best;
    };
    const auto phi = [&](const Values& s, int64_t t, int64_t h, int64_t r, double shift) {
      const double score = d(s[(t * H + h) * M + r]);
      return (exponential ? std::exp(score - shift)
              : rectified ? std::max(score, 0.0)
                          : score) +
             eps;
    };
    std::vector<double> out(at(T * H * V));
    for (int64_t h = 0; h < H; ++h)
      for (int64_t i = 0; i < T; ++i) {
        const int64_t seen = causal ? i + 1 : T;
        double top = -1e300, total = 0;
        for (int64_t j = 0; j < seen; ++j) top = std::max(top, largest(ks, j, h));
        for (int64_t j = 0; j < seen; ++j) {
          double product = 0;
          for (int64_t r = 0; r < M; ++r)
            product += phi(qs, i, h, r, half(q, i, h) + largest(qs, i, h)) *
                       phi(ks, j, h, r, half(k, j, h) + top);
          total += product;
          for (int64_t c = 0; c < V; ++c)
            out[at((i * H + h) * V + c)] += product * d(v[(j * H + h) * V + c]);
        }
        double divisor = total / static_cast<double>(M);
        if (std::abs(divisor) <= eps) divisor += 2 * eps;
        for (int64_t c = 0; c < V; ++c)
          out[at((i * H + h) * V + c)] /= divisor * static_cast<double>(M);
      }
    return out;
  }
};

TEST(FavorScan, OddSizesAgainstTheDefinition) {
  for (const int64_t M : {1, 7, 16, 33})
    for (const int64_t V : {1, 7, 8, 15})
      for (const bool causal : {true, false})
        for (const bool exponential : {true, false}) {
          const Inputs in{9, 2, 5, M, V};
          const auto want = in.want(causal, exponential);
          on_every_target([&] {
            std::vector<float> state = in.no_state(), out(at(in.T * in.H * V));
            FavorScan f = in.scan(0, in.T, state, out.data());
            f.causal = causal, f.exponential = exponential;
            favor_scan(f);
            expect_near(out.data(), want.data(), in.T * in.H * V, 2e-5, 5e-6);
          });
        }
}

TEST(FavorScan, FeaturesAsTheyAre) {
  // of one sign, so that no denominator is small
  Inputs in{9, 2, 5, 13, 7};
  for (Values* s : {&in.qs, &in.ks})
    for (int64_t i = 0; i < in.T * in.H * in.M; ++i) s->data()[i] = -1 - std::abs(s->data()[i]);
  for (const bool causal : {true, false}) {
    const auto want = in.want(causal, false, false);
    on_every_target([&] {
      std::vector<float> state = in.no_state(), out(at(in.T * in.H * in.V));
      FavorScan f = in.scan(0, in.T, state, out.data());
      f.causal = causal, f.exponential = false, f.rectified = false;
      favor_scan(f);
      expect_near(out.data(), want.data(), in.T * in.H * in.V, 2e-5, 5e-6);
    });
  }
}

TEST(FavorScan, CallsAndThreadsChangeNoBits) {
  const Inputs in{11, 3, 4, 13, 6};
  on_every_target([&] {
    std::vector<float> state = in.no_state(), whole(at(in.T * in.H * in.V)), split = whole;
    favor_scan(in.scan(0, 11, state, whole.data()));
    const Threads one(1);
    std::vector<float> again = in.no_state();
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 4}, {4, 5}, {5, 11}})
      favor_scan(in.scan(begin, end, again, split.data()));
    expect_same_bits(split.data(), whole.data(), in.T * in.H * in.V, "outputs");
    expect_same_bits(again.data(), state.data(), static_cast<int64_t>(state.size()), "state");
  });
}

}  // namespace
}  // namespace tessera::kernels::performer_test
