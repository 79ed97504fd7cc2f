// Goldens: torch.optim, lion-pytorch, transformers.Adafactor in float64 (additions.md 8 of the
// specification names versions), schedulefree, bitsandbytes (tools/golden/optimizers.py), on
// W = gen(2,3; 0.5, 0.1) and G_t = gen(2,3; 0.7, t), where element n of gen(shape; a, b) is
// sin(a n + b).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/rng.h"
#include "tessera/train/optimizer/adafactor.h"
#include "tessera/train/optimizer/adam_int8.h"
#include "tessera/train/optimizer/lion.h"
#include "tessera/train/optimizer/schedule_free.h"
#include "tessera/train/optimizer/sgd.h"

namespace tessera::train::rules_test {
namespace {

std::vector<float> gen(size_t n, double a, double b) {
  std::vector<float> values;
  for (size_t i = 0; i < n; ++i)
    values.push_back(static_cast<float>(std::sin(a * static_cast<double>(i) + b)));
  return values;
}

std::vector<ParameterInfo> slots(double decay, std::vector<int64_t> shape = {2, 3}) {
  return {{.name = "w", .shape = std::move(shape), .weight_decay = decay}};
}

/// The weights after three updates; `row` are those of the first row after one.
std::vector<float> after_three(UpdateRule& rule, double lr, std::vector<float>* row = nullptr) {
  std::vector<float> w = gen(6, 0.5, 0.1);
  for (int64_t t = 1; t <= 3; ++t) {
    const std::vector<float> g = gen(6, 0.7, static_cast<double>(t));
    rule.update(std::vector<Parameter>{{w.data(), g.data()}}, {t, lr, 1});
    if (t == 1 && row != nullptr) row->assign(w.begin(), w.begin() + 3);
  }
  return w;
}

void expect_near(const std::vector<float>& found, const std::vector<double>& want, double bound) {
  ASSERT_EQ(found.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(found[i], want[i], bound) << i;
}

TEST(Sgd, AgainstTorch) {
  Sgd plain(slots(0.01), {.momentum = 0.9});
  std::vector<float> row;
  expect_near(after_three(plain, 0.1, &row),
              {-0.31523271, 0.26493728, 0.84710551, 1.23069052, 1.25958383, 0.88962129}, 3e-7);
  expect_near(row, {0.01558648, 0.46491135, 0.82276983}, 2e-7);
  Sgd nesterov(slots(0.01), {.momentum = 0.9, .nesterov = true});
  expect_near(after_three(nesterov, 0.1),
              {-0.46238880, 0.20509573, 0.90241354, 1.37464762, 1.42393706, 0.99659982}, 3e-7);
  EXPECT_EQ(plain.state().size(), 1u);
  Sgd bare(slots(0), {.momentum = 0});
  EXPECT_TRUE(bare.state().empty());
  after_three(bare, 0.1, &row);
  const std::vector<float> w = gen(6, 0.5, 0.1), g = gen(6, 0.7, 1);
  for (size_t i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(row[i], w[i] - 0.1F * g[i]);
}

TEST(Adam, CoupledDecayAgainstTorch) {
  AdamW adam(slots(0.1), {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .coupled = true});
  std::vector<float> w = after_three(adam, 0.01);
  w.resize(3);
  expect_near(w, {0.07129265, 0.54116690, 0.87835732}, 3e-7);
}

TEST(Lion, AgainstLionPytorch) {
  Lion lion(slots(0.1), 0.9, 0.99);
  std::vector<float> row;
  expect_near(after_three(lion, 0.01, &row),
              {0.06956421, 0.55298023, 0.89854640, 1.00658787, 0.89059234, 0.52392642}, 3e-7);
  expect_near(row, {0.08973358, 0.55407783, 0.88031615}, 2e-7);
  // a moment and a gradient of zero move nothing
  std::vector<float> one{1};
  const std::vector<float> zero{0};
  Lion still(slots(0, {1}), 0.9, 0.99);
  still.update(std::vector<Parameter>{{one.data(), zero.data()}}, {1, 0.01, 1});
  EXPECT_EQ(one[0], 1);
}

TEST(Adafactor, AgainstTorch) {
  Adafactor rule(slots(0.1), {});
  std::vector<float> row;
  expect_near(after_three(rule, 0.01, &row),
              {0.07993446, 0.55680668, 0.89646320, 1.01254844, 0.88028359, 0.52850579}, 3e-7);
  expect_near(row, {0.09054727, 0.55625034, 0.88508758}, 2e-7);
}

TEST(Adafactor, AgainstTransformers) {
  // relative_step without warm-up: the rate is 1e-2 while that is below 1 / sqrt(t)
  Adafactor relative(slots(0.1), {.torch_form = false});
  expect_near(after_three(relative, 0.01),
              {0.08000631, 0.55727089, 0.89720563, 1.01338506, 0.88100931, 0.52894073}, 3e-7);
  Adafactor absolute(slots(0.1), {.torch_form = false, .beta1 = 0.9, .scale_parameter = false});
  expect_near(after_three(absolute, 0.01),
              {0.09352750, 0.55973774, 0.88874494, 0.99957670, 0.86588127, 0.51914256}, 3e-7);
}

TEST(Adafactor, KeepsRowsAndColumnsOfMatricesAndAllOfVectors) {
  Adafactor matrices(slots(0, {2, 5, 7}), {}), vector(slots(0, {35}), {});
  const auto sizes = [](UpdateRule& rule) {
    int64_t n = 0;
    for (const RuleState& state : rule.state()) n += state.bytes() / 4;
    return n;
  };
  EXPECT_EQ(sizes(matrices), 2 * 5 + 2 * 7);
  EXPECT_EQ(sizes(vector), 35);
  // each matrix by itself: the same as two parameters but for the root mean square of all
  std::vector<float> w(70, 1), alone(35, 1);
  std::vector<float> g = gen(35, 0.7, 1);
  g.insert(g.end(), g.begin(), g.end());
  matrices.update(std::vector<Parameter>{{w.data(), g.data()}}, {1, 0.01, 1});
  Adafactor one(slots(0, {5, 7}), {});
  one.update(std::vector<Parameter>{{alone.data(), g.data()}}, {1, 0.01, 1});
  for (size_t i = 0; i < 70; ++i) EXPECT_NEAR(w[i], alone[i % 35], 1e-6) << i;
}

TEST(ScheduleFree, AgainstTheAuthorsPackage) {
  std::vector<float> w = gen(6, 0.5, 0.1);
  ScheduleFree rule(slots(0.1), {.beta1 = 0.9, .beta2 = 0.95},
                    std::vector<Parameter>{{w.data(), nullptr}});
  std::vector<float> y = after_three(rule, 0.01);
  expect_near(y, {0.08158538, 0.55260685, 0.88835775, 1.00236247, 0.88233685, 0.52898740}, 3e-7);
  rule.to_average(0, y.data());
  expect_near(y, {0.08207183, 0.55233524, 0.88736520, 1.00114428, 0.88159748, 0.52896925}, 3e-7);
}

TEST(AdamInt8, TableOfBitsandbytes) {
  const std::pair<size_t, double> with[] = {{0, -0.99296874},   {1, -0.97890627},
                                            {100, -0.00746875}, {129, 0.00000325},
                                            {200, 0.23359375},  {255, 1}},
                                  without[] = {{0, 0},
                                               {1, 0.00000033},
                                               {100, 0.06273438},
                                               {129, 0.11757813},
                                               {200, 0.61679685},
                                               {254, 0.99648440}};
  for (const auto& [i, value] : with) EXPECT_NEAR(dynamic_table(true)[i], value, 1e-8);
  for (const auto& [i, value] : without) EXPECT_NEAR(dynamic_table(false)[i], value, 1e-8);
  double sum = 0;
  for (const float value : dynamic_table(false)) sum += value;
  EXPECT_NEAR(sum, 75.10526324, 1e-5);
}

TEST(AdamInt8, ABlockHoldsTheNearestNumbers) {
  const RandomKey key(7);
  for (const bool with_sign : {true, false}) {
    std::vector<float> values(256), back(256);
    for (size_t i = 0; i < 256; ++i) {
      const double size = std::exp(3 * key.normal(i));
      values[i] = static_cast<float>(with_sign && i % 2 == 1 ? -size : size);
    }
    values[3] = 0;
    std::vector<uint8_t> bytes(256);
    float scale = 0;
    pack_block(values, with_sign, bytes.data(), scale);
    unpack_block(bytes.data(), scale, with_sign, back);
    for (size_t i = 0; i < 256; ++i) {
      double nearest = 1e9;
      for (const float entry : dynamic_table(with_sign))
        nearest = std::min(nearest, std::fabs(static_cast<double>(entry) - values[i] / scale));
      EXPECT_NEAR(std::fabs(back[i] / scale - values[i] / scale), nearest, 1e-6) << values[i];
    }
    EXPECT_EQ(back[3], 0);
  }
}

TEST(AdamInt8, AgainstBitsandbytesRounding) {
  AdamInt8 rule(slots(0.1, {4096}), {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8});
  std::vector<float> w = gen(4096, 0.5, 0.1);
  for (int64_t t = 1; t <= 3; ++t) {
    const std::vector<float> g = gen(4096, 0.7, static_cast<double>(t));
    rule.update(std::vector<Parameter>{{w.data(), g.data()}}, {t, 0.01, 1});
  }
  double sum = 0, squares = 0;
  for (const float value : w) sum += value, squares += static_cast<double>(value) * value;
  w.resize(6);
  expect_near(w, {0.07109903, 0.54019674, 0.87835901, 1.00192650, 0.88981101, 0.54021400}, 1e-6);
  // a number halfway between two of the table may fall to either side
  EXPECT_NEAR(sum, 0.15234381, 0.02);
  EXPECT_NEAR(squares, 2038.28510652, 0.02);
  int64_t bytes = 0;
  for (const RuleState& state : rule.state()) bytes += state.bytes();
  EXPECT_EQ(bytes, 2 * (4096 + 4 * 16));
}

}  // namespace
}  // namespace tessera::train::rules_test
