// p-RoPE, xPos and multimodal rotary positions; axial and convolutional ones.
#include <gtest/gtest.h>

#include "tessera/nn/position/m_rope.h"
#include "tessera/nn/position/p_rope.h"
#include "tessera/nn/position/position_testing.h"
#include "tessera/nn/position/xpos.h"

namespace tessera::nn::rotations_test {
namespace {

/// x_TD, one head at positions 0, 1, ..., rotated.
Tensor rotated(const spec::Json& json,
               const Tensor& x_TD,
               Side side,
               at::ScalarType type,
               const Tensor& axes_3N = {}) {
  const Scheme scheme(json, {}, 1, x_TD.size(1), true);
  Batch batch = Batch::of(std::vector<std::vector<int64_t>>{
      std::vector<int64_t>(static_cast<size_t>(x_TD.size(0)), 0)});
  batch.axes_3N = axes_3N;
  Context context;
  context.batch = &batch;
  return scheme.make(type)->rotate(x_TD.to(type).unsqueeze(1), side, context).squeeze(1);
}

TEST(Xpos, Golden) {
  const spec::Json json = {{"type", "xpos"}, {"scale_base", 8}};
  const Tensor q = ops::gen({5, 4}, 0.7, 0.1), k = ops::gen({5, 4}, 0.5, 0.4);
  const auto rows = [](const Tensor& x) { return at::stack({x[1], x[4]}); };
  ops::expect_both([&](at::ScalarType type) { return rows(rotated(json, q, Side::query, type)); },
                   ops::tensor({0.42892306, -0.03229818, -0.85782163, -0.91602355, 0.11626338,
                                0.57339917, 0.08299931, 0.59741830},
                               {2, 4}),
                   1e-8);
  ops::expect_both([&](at::ScalarType type) { return rows(rotated(json, k, Side::key, type)); },
                   ops::tensor({0.19137238, 0.81591680, -0.26276984, -0.72948350, -0.33568146,
                                -1.82265798, 0.05369548, -0.56895538},
                               {2, 4}),
                   1e-8);
  const std::vector<std::vector<double>> products = {
      {2.34886268},
      {-1.57044279, 0.94936511},
      {1.20430257, -1.13882284, -0.52712401},
      {-1.36228315, 0.52084647, -0.20814909, -1.11099830},
      {1.14156273, 0.03247911, -0.48357727, 0.26126593, -1.41958570}};
  ops::expect_both(
      [&](at::ScalarType type) {
        const Tensor all =
            at::matmul(rotated(json, q, Side::query, type), rotated(json, k, Side::key, type).t());
        std::vector<Tensor> seen;
        for (int64_t i = 0; i < 5; ++i) seen.push_back(all[i].narrow(0, 0, i + 1));
        return at::cat(seen);
      },
      [&] {
        std::vector<double> all;
        for (const auto& row : products) all.insert(all.end(), row.begin(), row.end());
        return ops::tensor(all);
      }(),
      1e-8);
}

TEST(Xpos, GoldenFading) {
  ops::expect_near(ops::tensor(XposConfig::fading(4)), ops::tensor({0.28571429, 0.64285714}), 1e-8);
  ops::expect_near(ops::tensor(XposConfig::fading(8)),
                   ops::tensor({0.28571429, 0.46428571, 0.64285714, 0.82142857}), 1e-8);
}

TEST(Xpos, FactorsStayInFloat32UpToTheLastPosition) {
  XposConfig config;
  const auto last = static_cast<double>(config.max_positions());
  const auto factor = static_cast<float>(std::pow(2.0 / 7, -last / config.scale_base));
  EXPECT_TRUE(std::isfinite(factor * 1000));
  EXPECT_GT(1 / factor, 0);
  EXPECT_GT(last, 32'000);
}

TEST(PRope, AllPairsAreRopeAndNoneIsNone) {
  const Tensor x = ops::gen({7, 8}, 0.37, 0.11);
  for (const char* layout : {"half", "interleaved"}) {
    const spec::Json rope = {{"type", "rope"}, {"layout", layout}};
    const spec::Json all = {{"type", "p_rope"}, {"layout", layout}, {"fraction", 1}};
    const spec::Json none = {{"type", "p_rope"}, {"layout", layout}, {"fraction", 0}};
    ops::expect_near(rotated(all, x, Side::query, at::kDouble),
                     rotated(rope, x, Side::query, at::kDouble), 0);
    ops::expect_near(rotated(none, x, Side::query, at::kDouble), x, 0);
  }
}

TEST(PRope, SlowPairsStandStillAndFastOnesTurnAsInRope) {
  const Tensor x = ops::gen({7, 8}, 0.37, 0.11);
  // three of four pairs at fraction 0.8: channels 3 and 7 stay
  const spec::Json json = {{"type", "p_rope"}, {"fraction", 0.8}};
  const Tensor slow = at::tensor(std::vector<int64_t>{3, 7}, at::kLong),
               fast = at::tensor(std::vector<int64_t>{0, 1, 2, 4, 5, 6}, at::kLong);
  const Tensor rope = rotated("rope", x, Side::key, at::kDouble);
  ops::expect_both(
      [&](at::ScalarType type) { return rotated(json, x, Side::key, type).index_select(1, slow); },
      x.index_select(1, slow), 0);
  ops::expect_both(
      [&](at::ScalarType type) { return rotated(json, x, Side::key, type).index_select(1, fast); },
      rope.index_select(1, fast), 1e-15);
}

TEST(PRope, FractionsOfManyPairsAreNotLostToRounding) {
  PRopeConfig config;
  config.fraction = 0.29;
  const auto omega = config.frequencies(200);
  EXPECT_GT(omega[28], 0);
  EXPECT_EQ(omega[29], 0);
}

TEST(MRope, TextIsRope) {
  const Tensor x = ops::gen({7, 8}, 0.37, 0.11);
  const Tensor text = at::arange(7, at::kLong).expand({3, 7});
  for (const char* arrangement : {"chunked", "interleaved"}) {
    const spec::Json json = {
        {"type", "m_rope"}, {"sections", {2, 1, 1}}, {"arrangement", arrangement}};
    const Tensor want = rotated("rope", x, Side::query, at::kDouble);
    ops::expect_near(rotated(json, x, Side::query, at::kDouble), want, 0);
    ops::expect_near(rotated(json, x, Side::query, at::kDouble, text), want, 0);
  }
}

TEST(MRope, EachPairTurnsByItsAxis) {
  const Tensor x = ops::gen({2, 8}, 0.37, 0.11);
  const Tensor axes = at::tensor(std::vector<int64_t>{3, 4, 5, 6, 7, 9}, at::kLong).reshape({3, 2});
  const std::pair<const char*, std::vector<int64_t>> cases[] = {{"chunked", {0, 0, 1, 2}},
                                                                {"interleaved", {0, 1, 2, 0}}};
  for (const auto& [arrangement, axis] : cases) {
    const spec::Json json = {
        {"type", "m_rope"}, {"sections", {2, 1, 1}}, {"arrangement", arrangement}};
    Tensor want = x.clone();
    for (int64_t i = 0; i < 2; ++i)
      for (int64_t m = 0; m < 4; ++m) {
        const double p = axes[axis[static_cast<size_t>(m)]][i].item<double>();
        const double turn = p * std::pow(10000, -2.0 * static_cast<double>(m) / 8);
        const double a = x[i][m].item<double>(), b = x[i][m + 4].item<double>();
        want[i][m] = a * std::cos(turn) - b * std::sin(turn);
        want[i][m + 4] = a * std::sin(turn) + b * std::cos(turn);
      }
    ops::expect_both([&](at::ScalarType type) { return rotated(json, x, Side::key, type, axes); },
                     want, 1e-14);
  }
}

TEST(MRope, SectionsOfQwen3) {
  MRopeConfig config;
  config.sections = {24, 20, 20};
  config.arrangement = MRopeSections::interleaved;
  const auto axes = config.axis_of_pair();
  ASSERT_EQ(axes.size(), 64u);
  for (int64_t m = 0; m < 64; ++m) EXPECT_EQ(axes[static_cast<size_t>(m)], m < 60 ? m % 3 : 0) << m;
}

TEST(MRope, GoldenPositionsOfAVideoBeforeText) {
  const auto got = m_rope_positions({{.frames = 3, .height = 2, .width = 2}, {.tokens = 3}});
  const std::vector<std::vector<int64_t>> want = {{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 4, 5},
                                                  {0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 3, 4, 5},
                                                  {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 3, 4, 5}};
  ASSERT_EQ(got.size(), 15u);
  for (size_t i = 0; i < 15; ++i)
    for (size_t axis = 0; axis < 3; ++axis) EXPECT_EQ(got[i][axis], want[axis][i]) << i;
}

TEST(MRope, AGridStartsAfterTheTextAndTextAfterItsGreatestPosition) {
  const auto got =
      m_rope_positions({{.tokens = 2}, {.frames = 1, .height = 2, .width = 3}, {.tokens = 1}});
  const std::vector<std::array<int64_t, 3>> want = {{0, 0, 0}, {1, 1, 1}, {2, 2, 2},
                                                    {2, 2, 3}, {2, 2, 4}, {2, 3, 2},
                                                    {2, 3, 3}, {2, 3, 4}, {5, 5, 5}};
  EXPECT_EQ(got, want);
}

TEST(MRope, PositionsOfAnotherShapeAreRefused) {
  const Tensor x = ops::gen({2, 8}, 0.37, 0.11);
  const spec::Json json = {{"type", "m_rope"}, {"sections", {2, 1, 1}}};
  EXPECT_THROW(rotated(json, x, Side::key, at::kDouble, at::zeros({2, 2}, at::kLong)), Error);
}

// --- added to the embedding ---------------------------------------------------------------------

Tensor embedded(const spec::Json& json,
                const Values& values,
                const Tensor& x_ND,
                bool causal,
                at::ScalarType type) {
  const Scheme scheme(json, values, 1, x_ND.size(1), causal);
  // two documents, of 3 tokens and of the others
  const auto rest = static_cast<size_t>(x_ND.size(0) - 3);
  const Batch batch =
      Batch::of(std::vector<std::vector<int64_t>>{{0, 0, 0}, std::vector<int64_t>(rest, 0)});
  Context context;
  context.batch = &batch;
  context.causal = causal;
  return scheme.make(type)->embed(x_ND.to(type), context, nullptr);
}

TEST(Axial, RowAndColumnStandSideBySide) {
  const Tensor x = ops::gen({8, 5}, 0.37, 0.11), row = ops::gen({2, 2}, 0.2, 0.4),
               column = ops::gen({3, 3}, 0.6, 0.1);
  const spec::Json json = {{"type", "axial"}, {"rows", 2}, {"columns", 3}, {"d_row", 2}};
  Tensor want = x.clone();
  for (int64_t n = 0; n < 8; ++n) {
    const int64_t t = n < 3 ? n : n - 3;
    want[n] += at::cat({row[t / 3], column[t % 3]});
  }
  ops::expect_both(
      [&](at::ScalarType type) {
        return embedded(json, {{"row.weight", row}, {"column.weight", column}}, x, true, type);
      },
      want, 1e-15);
}

TEST(Convolutional, IsItsSumForOddAndEvenKernels) {
  const Tensor x = ops::gen({10, 4}, 0.37, 0.11), bias = ops::gen({4}, 0.3, 0.2);
  for (const int64_t kernel : {1, 4, 5, 9})
    for (const bool causal : {true, false}) {
      const Tensor weight = ops::gen({4, 2, kernel}, 0.9, 0.3);
      const spec::Json json = {{"type", "convolutional"}, {"kernel", kernel}, {"groups", 2}};
      const int64_t left = causal ? kernel - 1 : kernel / 2;
      Tensor want = x.clone();
      for (int64_t n = 0; n < 10; ++n)
        for (int64_t c = 0; c < 4; ++c) {
          const int64_t begin = n < 3 ? 0 : 3, end = n < 3 ? 3 : 10;
          double sum = bias[c].item<double>();
          for (int64_t k = 0; k < kernel; ++k)
            for (int64_t i = 0; i < 2; ++i)
              if (const int64_t from = n + k - left; from >= begin && from < end)
                sum += weight[c][i][k].item<double>() * x[from][c / 2 * 2 + i].item<double>();
          want[n][c] += 0.5 * sum * (1 + std::erf(sum / std::sqrt(2.0)));
        }
      ops::expect_both(
          [&](at::ScalarType type) {
            return embedded(json, {{"weight", weight}, {"bias", bias}}, x, causal, type);
          },
          want, 1e-14);
    }
}

}  // namespace
}  // namespace tessera::nn::rotations_test
