// Fourier, S4D, S4, sLSTM, gMLP and Hyena layers against their definitions, computed here in double
// token by token or pair by pair.
#include <complex>

#include "tessera/nn/mixer/mixer_testing.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn::long_mixers_test {
namespace {

constexpr int64_t kT = 6, kD = 4;

Tensor value(const MixerUnderTest& mixer, const char* name) {
  return mixer.values.at(name);
}
Tensor dense(const MixerUnderTest& mixer, const std::string& name, const Tensor& x) {
  const auto bias = mixer.values.find(name + ".bias");
  return at::linear(x, mixer.values.at(name + ".weight"),
                    bias == mixer.values.end() ? Tensor() : bias->second);
}

// --- Fourier ------------------------------------------------------------------------------------

TEST(Fourier, Golden) {
  const MixerUnderTest mixer = golden_mixer({{"type", "fourier"}}, 4, {}, /*causal=*/false);
  const Tensor x = ops::tensor({1, 2, 0, -1, .5, -1, 3, 2, 2, 0, 1, -2}, {3, 4});
  mixer.expect_everywhere(x,
                          ops::tensor({7.5, -0.5, 7.5, -0.5, -0.75, 6.08012702, -3.75, -2.58012702,
                                       -0.75, -2.58012702, -3.75, 6.08012702},
                                      {3, 4}),
                          1e-8);
  // twice: T D / 2 times the sum of the input and its reversal
  mixer.expect_everywhere(mixer.whole(x, {3}) / 12,
                          ops::tensor({1, .5, 0, .5, 1.25, -1.5, 2, 1, 1.25, 1, 2, -1.5}, {3, 4}),
                          1e-12);
  mixer.expect_everywhere(ops::gen({3, 4}, .37, .11),
                          ops::tensor({3.6359280963, 0.3241974781, 0.4401786560, 0.3241974781,
                                       1.5749418086, -1.0639319468, -1.0298190668, -1.1847718442,
                                       1.5749418086, -1.1847718442, -1.0298190668, -1.0639319468},
                                      {3, 4}),
                          1e-9);
}

TEST(Fourier, LearnedAndRandomMatrices) {
  const Tensor x = golden_input(kT, kD);
  const MixerUnderTest learned = golden_mixer(
      {{"type", "fourier"}, {"transform", "learned"}, {"max_length", 9}}, kD, {}, /*causal=*/false);
  const Tensor tokens = value(learned, "tokens.weight").narrow(0, 0, kT).narrow(1, 0, kT);
  learned.expect_everywhere(
      x, at::einsum("ni,ij,kj->nk", {tokens, x, value(learned, "channels.weight")}), 1e-12);
  EXPECT_THROW(learned.whole(golden_input(10, kD), {10}), Error);
  const auto random = [&](int64_t seed) {
    const MixerUnderTest mixer = golden_mixer(
        {{"type", "fourier"}, {"transform", "random"}, {"max_length", kT}, {"seed", seed}}, kD, {},
        /*causal=*/false);
    const Tensor y = mixer.whole(x, {kT});
    mixer.expect_everywhere(x, y, 1e-12);
    return y;
  };
  EXPECT_TRUE(at::equal(random(1), random(1)));
  EXPECT_FALSE(at::allclose(random(1), random(2)));
}

TEST(Fourier, IsRefusedInADecoder) {
  EXPECT_THROW(golden_mixer({{"type", "fourier"}}, 4), Error);
}

// --- S4D and S4 ---------------------------------------------------------------------------------

using Complex = std::complex<double>;

Complex pair_of(const Tensor& t, int64_t h, int64_t m) {
  return {t[h][m][0].item<double>(), t[h][m][1].item<double>()};
}

/// gelu and the gated output around y = sum over pairs + D u.
Tensor lti_layer(const MixerUnderTest& mixer, const Tensor& u, const Tensor& y) {
  const auto halves = dense(mixer, "out", at::gelu(y + value(mixer, "d") * u)).chunk(2, -1);
  return halves[0] * at::sigmoid(halves[1]);
}

TEST(S4dLayer, AgainstTheRecurrenceOfEveryPair) {
  for (const char* rule : {"zoh", "bilinear"}) {
    const MixerUnderTest mixer =
        golden_mixer({{"type", "s4d"}, {"d_state", 6}, {"discretisation", rule}}, kD);
    const Tensor u = golden_input(kT, kD);
    Tensor y = at::zeros({kT, kD}, at::kDouble);
    for (int64_t h = 0; h < kD; ++h)
      for (int64_t m = 0; m < 3; ++m) {
        const double dt = std::exp(value(mixer, "log_dt")[h].item<double>());
        const Complex a(-std::exp(value(mixer, "a_log")[h][m].item<double>()),
                        value(mixer, "a_im")[h][m].item<double>());
        const bool zoh = std::string(rule) == "zoh";
        const Complex decay = zoh ? std::exp(dt * a) : (1.0 + dt / 2 * a) / (1.0 - dt / 2 * a);
        const Complex gain = zoh ? (decay - 1.0) / a : dt / (1.0 - dt / 2 * a);
        Complex x = 0;
        for (int64_t t = 0; t < kT; ++t) {
          x = decay * x + gain * u[t][h].item<double>();
          y[t][h] += 2 * (pair_of(value(mixer, "c"), h, m) * x).real();
        }
      }
    mixer.expect_everywhere(u, lti_layer(mixer, u, y), 1e-11);
  }
}

/// e^m by the Taylor series of e^{m / 256}.
Tensor matrix_exponential(const Tensor& m) {
  Tensor sum = at::eye(m.size(0), m.options()), term = sum;
  for (int i = 1; i < 24; ++i) {
    term = at::mm(term, m) / (256.0 * i);
    sum = sum + term;
  }
  for (int i = 0; i < 8; ++i) sum = at::mm(sum, sum);
  return sum;
}

class S4Layer : public ::testing::TestWithParam<const char*> {};

TEST_P(S4Layer, AgainstTheDenseRecurrence) {
  const bool zoh = std::string(GetParam()) == "zoh";
  const MixerUnderTest mixer =
      golden_mixer({{"type", "s4"}, {"d_state", 4}, {"discretisation", GetParam()}}, kD);
  const Tensor u = golden_input(kT, kD);
  Tensor y = at::zeros({kT, kD}, at::kDouble);
  const auto c64 = at::TensorOptions().dtype(at::kComplexDouble);
  for (int64_t h = 0; h < kD; ++h) {
    // both members of every pair, as one dense complex system
    const auto both = [&](const char* name) {
      const Tensor half = at::view_as_complex(value(mixer, name)[h].contiguous());
      return at::cat({half, half.conj()});
    };
    const Tensor real = -value(mixer, "a_log")[h].exp(), imaginary = value(mixer, "a_im")[h];
    const Tensor lambda = at::cat({at::complex(real, imaginary), at::complex(real, -imaginary)});
    const Tensor p = both("p");
    const Tensor a = at::diag(lambda) - at::outer(p, p.conj());
    const Tensor dt = value(mixer, "log_dt")[h].exp(), one = at::eye(4, c64);
    Tensor decay, gain;
    if (zoh) {
      decay = matrix_exponential(dt * a);
      gain = at::mv(at::mm(at::inverse(a), decay - one), both("b"));
    } else {
      const Tensor inverse = at::inverse(one - dt / 2 * a);
      decay = at::mm(inverse, one + dt / 2 * a);
      gain = at::mv(inverse, both("b") * dt);
    }
    Tensor x = at::zeros({4}, c64);
    for (int64_t t = 0; t < kT; ++t) {
      x = at::mv(decay, x) + gain * u[t][h];
      y[t][h] = at::real((both("c") * x).sum());
    }
  }
  mixer.expect_everywhere(u, lti_layer(mixer, u, y), 1e-10);
}
INSTANTIATE_TEST_SUITE_P(Rules, S4Layer, ::testing::Values("bilinear", "zoh"));

TEST(S4Config, RefusesLargeDenseSystems) {
  EXPECT_NO_THROW(MixerUnderTest(R"({"type": "s4", "d_state": 256})", 1));
  EXPECT_THROW(MixerUnderTest(R"({"type": "s4", "d_state": 256, "discretisation": "zoh"})", 1),
               Error);
}

// --- sLSTM --------------------------------------------------------------------------------------

TEST(SlstmLayer, AgainstTheCellTokenByToken) {
  // a head's two channels may nearly agree: with a small eps the norm magnifies their roundings
  constexpr double kEps = 1e-3;
  for (const int64_t d_conv : {0, 3}) {
    const MixerUnderTest mixer = golden_mixer(
        {{"type", "slstm"}, {"n_heads", 2}, {"d_conv", d_conv}, {"norm_eps", kEps}}, kD);
    const Tensor x = golden_input(kT, kD);
    Tensor seen = x;
    if (d_conv > 0) {
      seen = at::zeros_like(x);
      for (int64_t t = 0; t < kT; ++t) {
        seen[t] = value(mixer, "conv.bias");
        for (int64_t j = 0; j < d_conv; ++j)
          if (t - (d_conv - 1) + j >= 0)
            seen[t] += value(mixer, "conv.weight").select(1, j) * x[t - (d_conv - 1) + j];
      }
      seen = at::silu(seen);
    }
    // row o of a head's block meets that head's two channels
    const auto blocks = [](const Tensor& w, const Tensor& v) {
      return (w.reshape({2, 2, 2}) * v.reshape({2, 1, 2})).sum(-1).reshape({kD});
    };
    Tensor h = at::zeros({kD}, at::kDouble), c = h, n = h;
    std::vector<Tensor> out;
    for (int64_t t = 0; t < kT; ++t) {
      std::vector<Tensor> g;
      const char* names[] = {"i.weight", "f.weight", "z.weight", "o.weight"};
      for (int64_t k = 0; k < 4; ++k)
        g.push_back(blocks(value(mixer, names[k]), k < 2 ? seen[t] : x[t]) +
                    blocks(value(mixer, "recurrent.weight").narrow(0, k * kD, kD), h) +
                    value(mixer, "bias")[k]);
      c = at::sigmoid(g[1]) * c + g[0].exp() * at::tanh(g[2]);
      n = at::sigmoid(g[1]) * n + g[0].exp();
      h = at::sigmoid(g[3]) * c / n;
      const Tensor heads = h.reshape({2, 2});
      const Tensor centred = heads - heads.mean(-1, true);
      out.push_back((centred / at::sqrt(centred.square().mean(-1, true) + kEps)).reshape({kD}) *
                    value(mixer, "norm.weight"));
    }
    mixer.expect_everywhere(x, at::stack(out), 1e-10);
  }
}

// --- gMLP ---------------------------------------------------------------------------------------

TEST(GmlpLayer, AgainstTheDefinition) {
  for (const bool causal : {true, false}) {
    const MixerUnderTest mixer =
        golden_mixer({{"type", "gmlp"}, {"d_hidden", 6}, {"max_length", 8}}, kD, {}, causal);
    const Tensor x = golden_input(kT, kD);
    const auto halves = at::gelu(dense(mixer, "in", x)).chunk(2, -1);
    const Tensor v = at::layer_norm(halves[1], {3}, value(mixer, "norm.weight"),
                                    value(mixer, "norm.bias"), 1e-5);
    Tensor mixed = at::zeros({kT, 3}, at::kDouble);
    for (int64_t t = 0; t < kT; ++t) {
      mixed[t] += value(mixer, "tokens.bias")[t];
      for (int64_t s = 0; s < (causal ? t + 1 : kT); ++s)
        mixed[t] += value(mixer, "tokens.weight")[t][s] * v[s];
    }
    const Tensor want = dense(mixer, "out", halves[0] * mixed);
    if (causal) {
      mixer.expect_everywhere(x, want, 1e-12);
    } else {
      ops::expect_near(mixer.whole(x, {kT}), want, 1e-12);
      const at::NoGradGuard no_gradients;
      ops::expect_near(mixer.whole(x.to(at::kFloat), {kT}), want, 1e-5);
    }
    EXPECT_THROW(mixer.whole(golden_input(9, kD), {9}), Error);
  }
}

// --- Hyena --------------------------------------------------------------------------------------

TEST(HyenaLayer, AgainstTheDirectConvolution) {
  for (const int64_t order : {2, 3}) {
    constexpr int64_t kL = 10;
    const double shift = order == 2 ? 0.05 : 0;
    const MixerUnderTest mixer = golden_mixer({{"type", "hyena"},
                                               {"max_length", kL},
                                               {"order", order},
                                               {"filter_width", 5},
                                               {"filter_layers", 1},
                                               {"bands", 2},
                                               {"shift", shift}},
                                              kD);
    const Tensor u = golden_input(kT, kD);
    const Tensor projected = dense(mixer, "in", u);
    Tensor short_conv = at::zeros_like(projected);
    for (int64_t t = 0; t < kT; ++t) {
      short_conv[t] += value(mixer, "conv.bias");
      for (int64_t j = std::max<int64_t>(0, 2 - t); j < 3; ++j)
        short_conv[t] += value(mixer, "conv.weight").select(1, j) * projected[t - 2 + j];
    }
    const auto parts = short_conv.chunk(order + 1, -1);
    // the filters
    const int64_t channels = (order - 1) * kD;
    std::vector<Tensor> k;
    for (int64_t t = 0; t < kT; ++t) {
      std::vector<double> features{static_cast<double>(t) / (kL - 1)};
      const double w = 2 * M_PI * static_cast<double>(t) / kL;
      for (const double f : {1e-4, 1.0}) features.push_back(std::cos(f * w));
      for (const double f : {1e-4, 1.0}) features.push_back(-std::sin(f * w));
      const Tensor frequency = value(mixer, "filter.frequency");
      Tensor h = at::sin(frequency * dense(mixer, "filter.in", ops::tensor(features)));
      h = dense(mixer, "filter.out", at::sin(frequency * dense(mixer, "filter.hidden.0", h)));
      for (int64_t c = 0; c < channels; ++c) {
        const double slow = std::log(1e-2) / 1.5, fast = std::log(1e-2) / 0.3;
        const double delta =
            slow + (fast - slow) * static_cast<double>(c) / static_cast<double>(channels - 1);
        h[c] *= std::exp(-std::abs(delta) * static_cast<double>(t) / (kL - 1)) + shift;
      }
      k.push_back(h.reshape({kD, order - 1}));
    }
    Tensor v = parts.back();
    for (int64_t i = order - 1; i > 0; --i) {
      const int64_t filter = order - 1 - i;
      const Tensor z = v * parts[static_cast<size_t>(i)];
      v = value(mixer, "bias")[filter] * z;
      for (int64_t t = 0; t < kT; ++t)
        for (int64_t s = 0; s <= t; ++s)
          v[t] += k[static_cast<size_t>(t - s)].select(1, filter) * z[s];
    }
    mixer.expect_everywhere(u, dense(mixer, "out", v * parts[0]), 1e-11);
    EXPECT_THROW(mixer.whole(golden_input(kL + 1, kD), {kL + 1}), Error);
  }
}

/// With filters of ones only their window is left, which an impulse shows.
TEST(HyenaLayer, WindowGolden) {
  constexpr int64_t kChannels = 3, kWidth = 2, kLength = 2;
  const auto ones = [](std::vector<int64_t> shape) { return at::ones(shape, at::kDouble); };
  const auto zeros = [](std::vector<int64_t> shape) { return at::zeros(shape, at::kDouble); };
  const Tensor zero = zeros({kChannels, kChannels}), one = at::eye(kChannels, at::kDouble);
  const MixerUnderTest mixer =
      golden_mixer({{"type", "hyena"},
                    {"max_length", kLength},
                    {"filter_width", kWidth},
                    {"filter_layers", 0},
                    {"d_conv", 1}},
                   kChannels,
                   {{"in.weight", at::cat({zero, zero, one})},  // x_0 = x_1 = 1, v = u
                    {"in.bias", at::cat({ones({2 * kChannels}), zeros({kChannels})})},
                    {"conv.weight", ones({3 * kChannels, 1})},
                    {"conv.bias", zeros({3 * kChannels})},
                    {"filter.in.weight", zeros({kWidth, 3})},
                    {"filter.in.bias", at::full({kWidth}, M_PI / 2, at::kDouble)},
                    {"filter.frequency", ones({kWidth})},
                    {"filter.out.weight", ones({kChannels, kWidth}) / kWidth},
                    {"bias", zeros({1, kChannels})},
                    {"out.weight", one},
                    {"out.bias", zeros({kChannels})}});
  const Tensor impulse = at::cat({ones({1, kChannels}), zeros({1, kChannels})});
  const Tensor y = mixer.whole(impulse, {kLength});
  ops::expect_near(y[0], ones({kChannels}), 1e-12);
  // t = L - 1 has the feature 1; in the transform's rounding of 1e-16 the last keeps nine digits
  ops::expect_near(-y[1].log().narrow(0, 0, 2), ops::tensor({3.07011346, 9.21034037}), 1e-8);
  ops::expect_near(y[1] / at::exp(-ops::tensor({3.07011346, 9.21034037, 15.35056729})),
                   ones({kChannels}), 2e-8);
}

}  // namespace
}  // namespace tessera::nn::long_mixers_test
