// Kernels of norms, rotations and gates, emulated, against their formulas in double.
#include <gtest/gtest.h>

#include "tessera/cuda/kernels_testing.h"

namespace tessera::cuda::basic_test {
namespace {

size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

struct Norm {
  std::vector<float> y, r, dx, dw;
  bool operator==(const Norm&) const = default;
};

struct NormInputs {
  int64_t rows, d;
  bool weighted;
  std::vector<float> x, w, dy;
  static constexpr float kOffset = 1, kEps = 1e-5f;
  NormInputs(int64_t n, int64_t width, bool with_weight)
      : rows(n),
        d(width),
        weighted(with_weight),
        x(numbers(n * width, .7)),
        w(numbers(width, .3)),
        dy(numbers(n * width, .11, 1)) {}
  const float* weight() const { return weighted ? w.data() : nullptr; }
};

template <int kLanes>
Norm norm_by_kernels(const NormInputs& in, Order order) {
  const Emulator emulator(order);
  const int64_t parts = blocks_of(in.rows, RmsNormWeightGradient::kRows);
  Norm out{unwritten(in.rows * in.d), unwritten(in.rows), unwritten(in.rows * in.d),
           unwritten(parts * in.d)};
  launch<RmsNorm<kLanes>>(
      {blocks_of(in.rows, RmsNorm<kLanes>::kRows)},
      {in.x.data(), in.weight(), out.y.data(), out.r.data(), in.rows, in.d, in.kOffset, in.kEps},
      {});
  launch<RmsNormInputGradient<kLanes>>({blocks_of(in.rows, RmsNorm<kLanes>::kRows)},
                                       {in.x.data(), in.weight(), out.r.data(), in.dy.data(),
                                        out.dx.data(), in.rows, in.d, in.kOffset},
                                       {});
  launch<RmsNormWeightGradient>(
      {parts, blocks_of(in.d, RmsNormWeightGradient::kThreads)},
      {in.x.data(), out.r.data(), in.dy.data(), out.dw.data(), in.rows, in.d}, {});
  return out;
}

template <int kLanes>
void expect_norm(int64_t rows, int64_t d, bool weighted) {
  const NormInputs in(rows, d, weighted);
  const int64_t parts = blocks_of(rows, RmsNormWeightGradient::kRows);
  std::vector<double> y(at(rows * d)), r(at(rows)), dx(at(rows * d)), dw(at(parts * d));
  const auto factor = [&](int64_t i) { return weighted ? in.w[at(i)] + double{in.kOffset} : 1.0; };
  for (int64_t row = 0; row < rows; ++row) {
    double squares = 0, dot = 0;
    for (int64_t i = 0; i < d; ++i) squares += std::pow(in.x[at(row * d + i)], 2.0);
    const double by = 1 / std::sqrt(squares / static_cast<double>(d) + double{in.kEps});
    r[at(row)] = by;
    for (int64_t i = 0; i < d; ++i)
      dot += in.dy[at(row * d + i)] * factor(i) * in.x[at(row * d + i)];
    for (int64_t i = 0; i < d; ++i) {
      const double x = in.x[at(row * d + i)], g = in.dy[at(row * d + i)];
      y[at(row * d + i)] = x * by * factor(i);
      dx[at(row * d + i)] = by * g * factor(i) - dot * std::pow(by, 3) / static_cast<double>(d) * x;
      dw[at(row / RmsNormWeightGradient::kRows * d + i)] += g * x * by;
    }
  }
  const Norm got = norm_by_kernels<kLanes>(in, Order::forwards);
  const std::string what = std::to_string(rows) + " rows of " + std::to_string(d) + ": ";
  expect_close(got.y, y, 3e-6, what + "y");
  expect_close(got.r, r, 3e-6, what + "r");
  expect_close(got.dx, dx, 3e-6, what + "dx");
  expect_close(got.dw, dw, 3e-6, what + "dw");
  EXPECT_EQ(norm_by_kernels<kLanes>(in, Order::backwards), got)
      << what << "depends on the order of threads";
}

TEST(RmsNorm, EmulatedKernelsGiveTheNormAndItsGradients) {
  for (const bool weighted : {true, false}) {
    for (const int64_t d : {1, 31, 32, 64, 129}) expect_norm<32>(9, d, weighted);
    for (const int64_t d : {1, 255, 576, 1000}) expect_norm<256>(3, d, weighted);
  }
  expect_norm<32>(130, 5, true);
}

TEST(Rope, EmulatedKernelTurnsPairsAndBack) {
  struct Case {
    int64_t tokens, heads, d, pairs;
  };
  for (const auto& [tokens, heads, d, pairs] :
       {Case{1, 1, 2, 1}, {5, 3, 8, 4}, {7, 2, 10, 3}, {33, 4, 64, 32}, {3, 1, 5, 0}})
    for (const bool interleaved : {false, true}) {
      const std::vector<float> x = numbers(tokens * heads * d, .7);
      std::vector<float> cosines, sines;
      for (int64_t i = 0; i < tokens * pairs; ++i) {
        cosines.push_back(static_cast<float>(std::cos(.37 * static_cast<double>(i))));
        sines.push_back(static_cast<float>(std::sin(.37 * static_cast<double>(i))));
      }
      std::vector<double> want(x.begin(), x.end());
      for (int64_t head = 0; head < tokens * heads; ++head)
        for (int64_t p = 0; p < pairs; ++p) {
          const int64_t first = head * d + (interleaved ? 2 * p : p),
                        second = head * d + (interleaved ? 2 * p + 1 : p + pairs),
                        angle = head / heads * pairs + p;
          const double a = x[at(first)], b = x[at(second)], c = cosines[at(angle)],
                       s = sines[at(angle)];
          want[at(first)] = a * c - b * s;
          want[at(second)] = a * s + b * c;
        }
      const auto turned = [&](const std::vector<float>& from, bool back, Order order) {
        const Emulator emulator(order);
        std::vector<float> y = unwritten(tokens * heads * d);
        launch<Rope>({blocks_of(tokens * Rope::work(heads, d, pairs), Rope::kThreads)},
                     {from.data(), cosines.data(), sines.data(), y.data(), tokens, heads, d, pairs,
                      interleaved, back},
                     {});
        return y;
      };
      const std::vector<float> y = turned(x, false, Order::forwards);
      expect_close(y, want, 1e-6, "y");
      EXPECT_EQ(turned(x, false, Order::backwards), y);
      expect_close(turned(y, true, Order::forwards), {x.begin(), x.end()}, 1e-6, "turned back");
    }
}

TEST(SwiGlu, EmulatedKernelsGiveTheGateAndItsGradients) {
  for (const int64_t n : {1, 255, 1024, 1025, 5000}) {
    std::vector<float> g = numbers(n, .7);
    for (float& x : g) x *= 20;
    const std::vector<float> u = numbers(n, .3), dy = numbers(n, .11, 1);
    std::vector<double> y(at(n)), dg(at(n)), du(at(n));
    for (size_t i = 0; i < y.size(); ++i) {
      const double s = 1 / (1 + std::exp(-double{g[i]}));
      y[i] = g[i] * s * u[i];
      du[i] = dy[i] * g[i] * s;
      dg[i] = dy[i] * u[i] * s * (1 + g[i] * (1 - s));
    }
    std::vector<std::vector<float>> by_order;
    for (const Order order : {Order::forwards, Order::backwards}) {
      const Emulator emulator(order);
      std::vector<float> got = unwritten(n), got_dg = unwritten(n), got_du = unwritten(n);
      const Grid grid{blocks_of(n, SwiGlu::kEach * SwiGlu::kThreads)};
      launch<SwiGlu>(grid, {g.data(), u.data(), got.data(), n}, {});
      launch<SwiGluGradient>(grid, {g.data(), u.data(), dy.data(), got_dg.data(), got_du.data(), n},
                             {});
      expect_close(got, y, 1e-6, "y");
      expect_close(got_dg, dg, 1e-6, "dg");
      expect_close(got_du, du, 1e-6, "du");
      for (const auto* part : {&got, &got_dg, &got_du}) by_order.push_back(*part);
    }
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(by_order[i], by_order[i + 3]);
  }
}

}  // namespace
}  // namespace tessera::cuda::basic_test
