#include "tessera/kernels/basic/rowwise.h"

#include <functional>

#include "tessera/base/error.h"
#include "tessera/kernels/kernels_testing.h"

namespace tessera::kernels::rowwise_test {
namespace {

constexpr Activation kAll[] = {Activation::identity,  Activation::relu,       Activation::gelu,
                               Activation::gelu_tanh, Activation::quick_gelu, Activation::silu,
                               Activation::sigmoid,   Activation::relu2,      Activation::tanh};

double act_ref(Activation kind, double x) {
  const auto sigmoid = [](double u) {
    return u < 0 ? std::exp(u) / (1 + std::exp(u)) : 1 / (1 + std::exp(-u));
  };
  switch (kind) {
    case Activation::identity:
      return x;
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::gelu:
      return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    // (1 + tanh u) / 2 = sigmoid(2u): the form that keeps its digits in double
    case Activation::gelu_tanh:
      return x * sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    case Activation::quick_gelu:
      return x * sigmoid(1.702 * x);
    case Activation::silu:
      return x * sigmoid(x);
    case Activation::sigmoid:
      return sigmoid(x);
    case Activation::relu2:
      return x > 0 ? x * x : 0;
    case Activation::tanh:
      return std::tanh(x);
  }
  return 0;
}

TEST(Activation, SpecifiedValues) {
  const std::vector<float> x{-3, -1, -0.5, 0, 0.5, 1, 3};
  struct Case {
    Activation kind;
    std::vector<double> want;
  };
  const Case cases[] = {
      {Activation::gelu,
       {-0.00404969, -0.15865525, -0.15426877, 0, 0.34573123, 0.84134475, 2.99595031}},
      {Activation::gelu_tanh,
       {-0.00363739, -0.15880801, -0.15428599, 0, 0.34571401, 0.84119199, 2.99636261}},
      {Activation::quick_gelu,
       {-0.01807131, -0.15420423, -0.14961156, 0, 0.35038844, 0.84579577, 2.98192869}},
      {Activation::silu,
       {-0.14227762, -0.26894142, -0.18877033, 0, 0.31122967, 0.73105858, 2.85772238}},
      {Activation::relu2, {0, 0, 0, 0, 0.25, 1, 9}},
  };
  for (const Case& c : cases)
    on_every_target([&] {
      float y[7];
      act(c.kind, x.data(), 7, y);
      expect_near(y, c.want.data(), 7, 1e-7, 6e-9);  // the printed digits, and float rounding
    });
}

TEST(Activation, RelativeErrorAgainstDouble) {
  std::vector<float> x;
  for (double v = -20; v <= 20; v += 0.00371) x.push_back(static_cast<float>(v));
  for (double v = 1e-30; v < 1; v *= 1.7)
    x.insert(x.end(), {static_cast<float>(v), static_cast<float>(-v)});
  const auto n = static_cast<int64_t>(x.size());
  std::vector<float> y(x.size());
  for (const Activation kind : kAll) {
    SCOPED_TRACE(static_cast<int>(kind));
    std::vector<double> want;
    for (const float v : x) want.push_back(act_ref(kind, static_cast<double>(v)));
    on_every_target([&] {
      act(kind, x.data(), n, y.data());
      // a factor of x below the smallest normal number counts as zero
      expect_near(y.data(), want.data(), n, 2e-6, 20 * 1.2e-38);
    });
  }
}

TEST(Activation, LimitsAndNan) {
  const float inf = std::numeric_limits<float>::infinity();
  const float x[] = {100, -100, 1e30f, -1e30f, inf, std::nanf("")};
  on_every_target([&] {
    float y[6];
    for (const Activation kind :
         {Activation::gelu, Activation::gelu_tanh, Activation::quick_gelu, Activation::silu}) {
      act(kind, x, 6, y);
      EXPECT_EQ(y[0], 100.0f);
      EXPECT_NEAR(y[1], 0.0f, 1e-37);
      EXPECT_EQ(y[2], 1e30f);
      EXPECT_EQ(y[3], 0.0f);
    }
    for (const Activation kind : kAll) {
      act(kind, x, 6, y);
      EXPECT_TRUE(std::isnan(y[5])) << static_cast<int>(kind);
    }
    act(Activation::tanh, x, 6, y);
    EXPECT_EQ(y[2], 1.0f);
    EXPECT_EQ(y[3], -1.0f);
  });
}

// An element has the same bits in a full vector, in a tail, and at any address; nothing is written
// outside.
TEST(Activation, SameBitsWhereverTheElementLies) {
  const Values x(1000, 7, 3);
  const Values up(1000, 8);
  on_every_target([&] {
    for (const Activation kind : kAll) {
      std::vector<float> one(1000), gated(1000);
      for (int64_t i = 0; i < 1000; ++i) {
        act(kind, x.data() + i, 1, &one[at(i)]);
        glu(kind, x.data() + i, up.data() + i, 1, &gated[at(i)]);
      }
      for (const int64_t n : odd_sizes())
        for (const int64_t offset : {0, 1, 3}) {
          std::vector<float> y(at(n + 2), 9.0f), g(at(n + 2), 9.0f);
          const int64_t count = std::min<int64_t>(n, 1000 - offset);
          act(kind, x.data() + offset, count, y.data() + 1);
          glu(kind, x.data() + offset, up.data() + offset, count, g.data() + 1);
          expect_same_bits(y.data() + 1, one.data() + offset, count, "act");
          expect_same_bits(g.data() + 1, gated.data() + offset, count, "glu");
          EXPECT_EQ(y[0] + y[at(count + 1)], 18.0f);
          EXPECT_EQ(g[0] + g[at(count + 1)], 18.0f);
          for (int64_t i = 0; i < count; ++i)
            EXPECT_EQ(g[at(i + 1)], y[at(i + 1)] * up[offset + i]);
        }
    }
  });
}

TEST(Softcap, AgainstDoubleAndInPlace) {
  for (const int64_t n : odd_sizes()) {
    Values x(n, 3, 40);
    std::vector<double> want;
    for (int64_t i = 0; i < n; ++i) want.push_back(30 * std::tanh(static_cast<double>(x[i]) / 30));
    on_every_target([&] {
      std::vector<float> y(x.data(), x.data() + n);
      softcap(y.data(), n, 30);
      expect_near(y.data(), want.data(), n, 2e-6, 0);
    });
  }
  float x = 1;
  EXPECT_THROW(softcap(&x, 1, 0), Error);
}

TEST(Add, AddsInPlace) {
  for (const int64_t n : odd_sizes())
    on_every_target([&] {
      const Values x(n, 1, 1, 1);
      Values y(n, 2, 1, 3);
      const std::vector<float> before(y.data(), y.data() + n);
      add(x.data(), y.data(), n);
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], before[at(i)] + x[i]);
    });
}

std::vector<double> norm_ref(const Values& x,
                             int64_t rows,
                             int64_t d,
                             const float* weight,
                             const float* bias,
                             double offset,
                             double eps,
                             bool centred) {
  std::vector<double> y;
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < d; ++i)
      mean += static_cast<double>(x[r * d + i]) / static_cast<double>(d);
    if (!centred) mean = 0;
    for (int64_t i = 0; i < d; ++i)
      squares += std::pow(static_cast<double>(x[r * d + i]) - mean, 2);
    const double s = std::sqrt(squares / static_cast<double>(d) + eps);
    for (int64_t i = 0; i < d; ++i)
      y.push_back((static_cast<double>(x[r * d + i]) - mean) / s *
                      (weight ? offset + static_cast<double>(weight[i]) : 1) +
                  (bias ? static_cast<double>(bias[i]) : 0));
  }
  return y;
}

TEST(RmsNorm, SpecifiedValues) {
  const float x[] = {1, 2, 3, 4};
  const float small[] = {1e-4f, 2e-4f, 3e-4f, 4e-4f};
  const float gemma[] = {.1f, -.2f, 0, .5f};
  const double want[] = {0.36514835, 0.73029669, 1.09544504, 1.46059339};
  const double want_small[] = {0.09644856, 0.19289713, 0.28934569, 0.38579426};
  const double want_gemma[] = {0.40166318, 0.58423736, 1.09544504, 2.19089008};
  on_every_target([&] {
    float y[4];
    rms_norm(x, 1, 4, nullptr, 0, 1e-6f, y);
    expect_near(y, want, 4, 2e-7, 6e-9);
    rms_norm(small, 1, 4, nullptr, 0, 1e-6f, y);
    expect_near(y, want_small, 4, 2e-7, 6e-9);
    rms_norm(x, 1, 4, gemma, 1, 1e-6f, y);
    expect_near(y, want_gemma, 4, 3e-7, 6e-9);
  });
}

TEST(LayerNorm, SpecifiedValues) {
  const float x[] = {1, 2, 3, 4};
  const double want[] = {-1.34163542, -0.44721181, 0.44721181, 1.34163542};
  const double want_small_eps[] = {-1.34164079, -0.44721360, 0.44721360, 1.34164079};
  on_every_target([&] {
    float y[4];
    layer_norm(x, 1, 4, nullptr, nullptr, 0, 1e-5f, y);
    expect_near(y, want, 4, 1e-7, 6e-9);
    layer_norm(x, 1, 4, nullptr, nullptr, 0, 1e-12f, y);
    expect_near(y, want_small_eps, 4, 1e-7, 6e-9);
  });
}

TEST(Norms, AllTargetsOddSizesAgainstDouble) {
  for (const int64_t d : odd_sizes())
    for (const int64_t offset : {0, 1, 3}) {
      Values x(3 * d, 4, 1, offset);
      for (int64_t i = 0; i < d; ++i) x[d + i] += 300;  // a mean far above the deviation
      const Values w(d, 5, 0.3, offset), b(d, 6, 1, offset);
      const auto rms = norm_ref(x, 3, d, w.data(), nullptr, 1, static_cast<double>(1e-6f), false);
      const auto layer = norm_ref(x, 3, d, w.data(), b.data(), 0, static_cast<double>(1e-5f), true);
      on_every_target([&] {
        std::vector<float> y(at(3 * d + 1), 5.0f);
        rms_norm(x.data(), 3, d, w.data(), 1, 1e-6f, y.data());
        expect_near(y.data(), rms.data(), 3 * d, 5e-7, 0);
        layer_norm(x.data(), 3, d, w.data(), b.data(), 0, 1e-5f, y.data());
        expect_near(y.data(), layer.data(), 3 * d, 5e-7, 5e-7);
        EXPECT_EQ(y.back(), 5.0f);
      });
    }
}

TEST(Norms, SameBitsForAnyNumberOfRowsThreadsAndInPlace) {
  constexpr int64_t kRows = 64, kD = 577;
  const Values x(kRows * kD, 4), w(kD, 5), b(kD, 6);
  on_every_target([&] {
    std::vector<float> one(at(kRows * kD)), many(at(kRows * kD));
    for (const bool centred : {false, true}) {
      const auto run = [&](const float* in, int64_t rows, float* out) {
        if (centred)
          layer_norm(in, rows, kD, w.data(), b.data(), 0, 1e-5f, out);
        else
          rms_norm(in, rows, kD, w.data(), 0, 1e-5f, out);
      };
      for (int64_t r = 0; r < kRows; ++r) run(x.data() + r * kD, 1, one.data() + r * kD);
      for (const int threads : {1, 2, 5}) {
        const Threads scope(threads);
        std::copy(x.data(), x.data() + kRows * kD, many.data());
        run(many.data(), kRows, many.data());
        expect_same_bits(many.data(), one.data(), kRows * kD, "norm");
      }
    }
  });
}

TEST(Norms, ZeroRowGivesZero) {
  const float x[3] = {};
  float y[3] = {1, 1, 1};
  rms_norm(x, 1, 3, nullptr, 0, 1e-6f, y);
  EXPECT_EQ(y[0] + y[1] + y[2], 0.0f);
}

}  // namespace
}  // namespace tessera::kernels::rowwise_test
