// Frequencies of rotary positions under every scaling, and sinusoidal vectors, against values
// computed independently in double. A printed value has 9 digits, so 1e-8 relative.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tessera/nn/rope_scaling/ntk.h"
#include "tessera/nn/position/rope.h"
#include "tessera/nn/position/sinusoidal.h"
#include "tessera/nn/registry.h"

namespace tessera::nn::rope_scaling_plain_test {
namespace {

using spec::Json;

RopeFrequencies frequencies(int64_t width, double theta, const char* scaling, int64_t length = 1) {
  register_mechanisms();
  spec::Scope scope;
  scope.width = width;
  scope.places = {.rotation = true};
  Json json = {{"type", "rope"}, {"theta", theta}};
  if (*scaling != '\0') json["scaling"] = spec::parse_json(scaling, "test");
  return spec::read_part(spec::Slot::position, json, scope).as<RopeConfig>().frequencies(length);
}

void expect_from(const std::vector<double>& omega, size_t first, const std::vector<double>& want) {
  ASSERT_LE(first + want.size(), omega.size());
  for (size_t m = 0; m < want.size(); ++m)
    EXPECT_NEAR(omega[first + m], want[m], 1e-8 * want[m]) << "pair " << first + m;
}

TEST(RopeScaling, Llama31TableOf8B) {
  const auto f =
      frequencies(128, 5e5, R"({"type": "llama3", "factor": 8, "original_length": 8192})");
  EXPECT_EQ(f.factor, 1);
  ASSERT_EQ(f.omega.size(), 64u);
  expect_from(f.omega, 0,
              {1,
               8.14617234e-01,
               6.63601238e-01,
               5.40581005e-01,
               4.40366603e-01,
               3.58730224e-01,
               2.92227823e-01,
               2.38053820e-01,
               1.93922745e-01,
               1.57972810e-01,
               1.28687373e-01,
               1.04830952e-01,
               8.53971003e-02,
               6.95659496e-02,
               5.66696214e-02,
               4.61640503e-02,
               3.76060309e-02,
               3.06345209e-02,
               2.49554087e-02,
               2.03291060e-02,
               1.65604401e-02,
               1.34904199e-02,
               1.09895285e-02,
               8.95225934e-03,
               7.29266474e-03,
               5.94073038e-03,
               4.83942135e-03,
               3.94227603e-03,
               3.21144599e-03,
               2.16657076e-03,
               1.37189357e-03,
               8.56751413e-04,
               5.24846161e-04,
               3.12693750e-04,
               1.78507813e-04,
               9.55621235e-05,
               7.78465527e-05,
               6.34151435e-05,
               5.16590687e-05,
               4.20823677e-05,
               3.42810220e-05,
               2.79259113e-05,
               2.27489286e-05,
               1.85316693e-05,
               1.50962172e-05,
               1.22976387e-05,
               1.00178684e-05,
               8.16072825e-06,
               6.64786987e-06,
               5.41546937e-06,
               4.41153467e-06,
               3.59371217e-06,
               2.92749987e-06,
               2.38479185e-06,
               1.94269254e-06,
               1.58255082e-06,
               1.28917317e-06,
               1.05018268e-06,
               8.55496913e-07,
               6.96902529e-07,
               5.67708810e-07,
               4.62465381e-07,
               3.76732269e-07,
               3.06892599e-07});
}

TEST(RopeScaling, Llama32TableOf1B) {
  const auto f =
      frequencies(64, 5e5, R"({"type": "llama3", "factor": 32, "original_length": 8192})");
  expect_from(f.omega, 14,
              {3.21144599e-03, 1.29054793e-03, 4.29556797e-04, 9.70828780e-05, 1.94616382e-05,
               1.29147672e-05});
}

TEST(RopeScaling, YarnTableOfDeepSeekV3) {
  const auto f = frequencies(
      64, 1e4,
      R"({"type": "yarn", "factor": 40, "original_length": 4096, "mscale": 1, "mscale_all_dim": 1})");
  EXPECT_DOUBLE_EQ(f.factor, 1);
  expect_from(f.omega, 0,
              {1,
               7.49894209e-01,
               5.62341325e-01,
               4.21696503e-01,
               3.16227766e-01,
               2.37137371e-01,
               1.77827941e-01,
               1.33352143e-01,
               1.00000000e-01,
               7.49894209e-02,
               5.62341325e-02,
               3.90069266e-02,
               2.68793601e-02,
               1.83781462e-02,
               1.24479559e-02,
               8.33450895e-03,
               5.50000000e-03,
               3.56199749e-03,
               2.24936530e-03,
               1.37051364e-03,
               7.90569415e-04,
               4.14990398e-04,
               1.77827941e-04,
               3.33380358e-05,
               2.50000000e-05,
               1.87473552e-05,
               1.40585331e-05,
               1.05424126e-05,
               7.90569415e-06,
               5.92843426e-06,
               4.44569853e-06,
               3.33380358e-06});
}

TEST(RopeScaling, YarnTableOfGptOssWithoutTruncation) {
  const auto f = frequencies(
      64, 150000, R"({"type": "yarn", "factor": 32, "original_length": 4096, "truncate": false})");
  EXPECT_NEAR(f.factor, 1.3465735903, 1e-10);
  expect_from(f.omega, 0,
              {1,
               6.89044306e-01,
               4.74782055e-01,
               3.27145872e-01,
               2.25418000e-01,
               1.55322989e-01,
               1.07024421e-01,
               7.37445682e-02,
               5.08132748e-02,
               3.17056962e-02,
               1.93350011e-02,
               1.15920493e-02,
               6.79495949e-03,
               3.86035932e-03,
               2.09379238e-03,
               1.05260210e-03,
               4.56483919e-04,
               1.29318701e-04,
               3.83088124e-05,
               2.63964690e-05,
               1.81883367e-05,
               1.25325698e-05,
               8.63549588e-06,
               5.95023926e-06,
               4.09997848e-06,
               2.82506683e-06,
               1.94659621e-06,
               1.34129104e-06,
               9.24208950e-07,
               6.36820915e-07,
               4.38797825e-07,
               3.02351143e-07});
}

TEST(RopeScaling, YarnTableOfQwen25) {
  const auto f =
      frequencies(128, 1e6, R"({"type": "yarn", "factor": 4, "original_length": 32768})");
  EXPECT_NEAR(f.factor, 1.1386294361, 1e-10);
  expect_from(f.omega, 23,
              {6.97830585e-03, 5.37532149e-03, 4.13173802e-03, 3.16842257e-03, 2.42342238e-03,
               1.84827656e-03, 1.40511248e-03, 1.06436098e-03, 8.02959728e-04, 6.02941176e-04,
               4.50323576e-04, 3.34240546e-04, 2.46258407e-04, 1.79841156e-04, 1.29931495e-04,
               9.26230170e-05, 6.49039432e-05, 4.44569853e-05});
}

/// Where the ramp over the indices begins and ends, from two frequencies inside of it: omega'_m =
/// omega_m (1 - gamma_m (1 - 1/s)), and gamma is linear in m there.
std::pair<double, double> ramp_of(int64_t width, double theta, double s, double trained, size_t m) {
  const std::string scaling = R"({"type": "yarn", "truncate": false, "factor": )" +
                              std::to_string(s) + R"(, "original_length": )" +
                              std::to_string(trained) + "}";
  const auto plain = frequencies(width, theta, "").omega,
             scaled = frequencies(width, theta, scaling.c_str()).omega;
  const auto gamma = [&](size_t i) { return (1 - scaled[i] / plain[i]) / (1 - 1 / s); };
  const double length = 1 / (gamma(m + 1) - gamma(m)),
               low = static_cast<double>(m) - gamma(m) * length;
  return {low, low + length};
}

TEST(RopeScaling, YarnRampWithoutTruncation) {
  const auto deepseek = ramp_of(64, 1e4, 40, 4096, 15), qwen = ramp_of(128, 1e6, 4, 32768, 30),
             gpt_oss = ramp_of(64, 150000, 32, 4096, 12);
  EXPECT_NEAR(deepseek.first, 10.47224081, 1e-8);
  EXPECT_NEAR(deepseek.second, 22.51344064, 1e-8);
  EXPECT_NEAR(qwen.first, 23.59594761, 1e-8);
  EXPECT_NEAR(qwen.second, 39.65088071, 1e-8);
  EXPECT_NEAR(gpt_oss.first, 8.0927791155, 1e-10);
  EXPECT_NEAR(gpt_oss.second, 17.3980245016, 1e-10);
}

TEST(RopeScaling, NtkKeepsTheFirstAndDividesTheLastFrequency) {
  EXPECT_NEAR(ntk_theta(1e4, 8, 128), 82684.6226405622, 1e-8);
  EXPECT_NEAR(ntk_theta(1e4, 4, 128), 40889.9424324849, 1e-8);
  const auto plain = frequencies(128, 1e4, ""),
             scaled = frequencies(128, 1e4, R"({"type": "ntk", "factor": 8})");
  EXPECT_EQ(scaled.omega.front(), 1);
  EXPECT_NEAR(scaled.omega.back() / plain.omega.back(), 0.125, 1e-14);
}

TEST(RopeScaling, DynamicGrowsWithTheLength) {
  const char* scaling = R"({"type": "dynamic", "factor": 2, "original_length": 4096})";
  const auto plain = frequencies(128, 1e4, "");
  for (const int64_t length : {1, 100, 4096})
    EXPECT_EQ(frequencies(128, 1e4, scaling, length).omega, plain.omega);
  const auto f = frequencies(128, 1e4, scaling, 8192).omega;
  expect_from(f, 0, {1, 0.850994291, 0.724191284});
  expect_from(f, 32, {0.00572338151});
  expect_from(f, 63, {3.84927328e-05});
  // omega_1 = theta'^(-2/128)
  EXPECT_NEAR(std::pow(f[1], -64), 30527.7367488067, 1e-8);
  EXPECT_NEAR(std::pow(frequencies(128, 1e4, scaling, 16384).omega[1], -64), 72195.8600865094,
              1e-6);
}

TEST(RopeScaling, LongRopeSwitchesListsBeyondTheTrainedLength) {
  const char* scaling =
      R"({"type": "longrope", "short_factor": [1, 2], "long_factor": [4, 5], "original_length": 4096, "factor": 32})";
  const auto within = frequencies(4, 1e4, scaling, 4096),
             beyond = frequencies(4, 1e4, scaling, 4097);
  EXPECT_NEAR(within.factor, 1.1902380714, 1e-10);
  EXPECT_EQ(within.factor, beyond.factor);
  expect_from(within.omega, 0, {1, 0.005});
  expect_from(beyond.omega, 0, {0.25, 0.002});
  // factors that are given, one for either side of the trained length
  const char* two =
      R"({"type": "longrope", "short_factor": [1, 2], "long_factor": [4, 5], "original_length": 4096,
          "attention_factor": 1.25, "long_attention_factor": 1.5})";
  EXPECT_EQ(frequencies(4, 1e4, two, 4096).factor, 1.25);
  EXPECT_EQ(frequencies(4, 1e4, two, 4097).factor, 1.5);
}

TEST(RopeScaling, FactorOneIsPlainRope) {
  const auto plain = frequencies(64, 1e4, "");
  for (const char* scaling :
       {R"({"type": "linear", "factor": 1})", R"({"type": "ntk", "factor": 1})",
        R"({"type": "yarn", "factor": 1, "original_length": 512})",
        R"({"type": "llama3", "factor": 1, "original_length": 512})"}) {
    const auto f = frequencies(64, 1e4, scaling);
    EXPECT_EQ(f.factor, 1) << scaling;
    for (size_t m = 0; m < plain.omega.size(); ++m)
      EXPECT_NEAR(f.omega[m], plain.omega[m], 1e-15 * plain.omega[m]) << scaling;
  }
}

TEST(RopeScaling, FrequenciesNeverRise) {
  for (const char* scaling :
       {"", R"({"type": "linear", "factor": 4})", R"({"type": "ntk", "factor": 4})",
        R"({"type": "yarn", "factor": 4, "original_length": 512})",
        R"({"type": "llama3", "factor": 4, "original_length": 512})",
        R"({"type": "dynamic", "factor": 4, "original_length": 512})"}) {
    const auto omega = frequencies(64, 1e4, scaling, 2048).omega;
    EXPECT_TRUE(std::is_sorted(omega.rbegin(), omega.rend())) << scaling;
  }
}

TEST(RopeScaling, LinearDividesEveryFrequency) {
  const auto plain = frequencies(8, 1e4, ""),
             scaled = frequencies(8, 1e4, R"({"type": "linear", "factor": 4})");
  for (size_t m = 0; m < 4; ++m) EXPECT_DOUBLE_EQ(scaled.omega[m], plain.omega[m] / 4);
}

// --- sinusoidal ---------------------------------------------------------------------------------

std::vector<double> vector_of(SinusoidalPositionConfig config, int64_t position, int64_t width) {
  std::vector<double> out(static_cast<size_t>(width), 99);
  config.vector(position, width, out.data());
  return out;
}

void expect_near(const std::vector<double>& got,
                 const std::vector<double>& want,
                 double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << i;
}

TEST(Sinusoidal, ThePapersVectorInBothLayouts) {
  SinusoidalPositionConfig config;
  expect_near(vector_of(config, 3, 4), {0.1411200081, -0.9899924966, 0.0299955002, 0.9995500337},
              1e-10);
  config.layout = SinusoidLayout::halves;
  expect_near(vector_of(config, 3, 4), {0.1411200081, 0.0299955002, -0.9899924966, 0.9995500337},
              1e-10);
  config.offset = 2;
  expect_near(vector_of(config, 1, 4), {0.1411200081, 0.0299955002, -0.9899924966, 0.9995500337},
              1e-10);
}

TEST(Sinusoidal, TheTwoFrequencyRules) {
  SinusoidalPositionConfig config;
  config.layout = SinusoidLayout::halves;
  const auto omegas = [&] {
    std::vector<double> out = vector_of(config, 1, 8);
    for (double& v : out) v = std::asin(v);
    return std::vector<double>(out.begin(), out.begin() + 4);
  };
  expect_near(omegas(), {1, 0.1, 0.01, 0.001}, 1e-12);
  config.frequency = SinusoidFrequency::t2t;
  expect_near(omegas(), {1, 0.0464158883, 0.00215443469, 0.0001}, 1e-10);
}

TEST(Sinusoidal, OddWidths) {
  SinusoidalPositionConfig config;
  config.layout = SinusoidLayout::halves;  // 3 sines, 2 cosines
  const auto paper = vector_of(config, 2, 5);
  for (int m = 0; m < 3; ++m)
    EXPECT_NEAR(paper[static_cast<size_t>(m)], std::sin(2 * std::pow(1e4, -2.0 * m / 5)), 1e-15);
  for (int m = 0; m < 2; ++m)
    EXPECT_NEAR(paper[static_cast<size_t>(3 + m)], std::cos(2 * std::pow(1e4, -2.0 * m / 5)),
                1e-15);
  config.frequency = SinusoidFrequency::t2t;  // a zero column at the end
  const auto t2t = vector_of(config, 2, 5);
  expect_near(t2t, {std::sin(2.0), std::sin(2e-4), std::cos(2.0), std::cos(2e-4), 0}, 1e-15);
}

TEST(Sinusoidal, NormAndInnerProducts) {
  const SinusoidalPositionConfig config;
  const auto dot = [&](int64_t p, int64_t q) {
    const auto a = vector_of(config, p, 16), b = vector_of(config, q, 16);
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  for (const int64_t p : {0, 1, 77}) EXPECT_NEAR(dot(p, p), 8, 1e-12);
  EXPECT_NEAR(dot(3, 10), dot(20, 27), 1e-12);  // depends on the distance only
}

}  // namespace
}  // namespace tessera::nn::rope_scaling_plain_test
