// State-space, convolution and recurrent mixers against transformers 5.23 and xlstm 2.0.6 in
// float64 (tools/golden/sequence_mixers.py) and the values of the specification.
#include "tessera/nn/mixer/mixer_testing.h"
#include "tessera/ops/random.h"

namespace tessera::nn::sequence_mixers_test {
namespace {

Tensor rows_of_4(const std::vector<double>& values) {
  return ops::tensor(values, {static_cast<int64_t>(values.size()) / 4, 4});
}

TEST(Mamba, AgainstTransformersMamba) {
  const MixerUnderTest mixer =
      golden_mixer({{"type", "mamba"}, {"d_state", 3}, {"d_conv", 3}, {"dt_rank", 2}}, 4);
  mixer.expect_everywhere(
      golden_input(5, 4),
      rows_of_4({36.4337907908,  166.0768105867, 56.7706023010,   -134.2164351723, 50.0442500661,
                 234.6098930427, 81.6217701154,  -188.8027299607, -411.4123649584, -575.3517469964,
                 88.5177344337,  625.0290119114, -9.2062225192,   -19.8800698164,  -1.9507224831,
                 18.7852998453,  3.3677095281,   50.3162983776,   24.8704294170,   -36.3587008565}),
      1e-9);
}

TEST(Mamba, AgainstTransformersFalconMamba) {
  const MixerUnderTest mixer =
      golden_mixer({{"type", "mamba"},
                    {"d_state", 3},
                    {"d_conv", 3},
                    {"dt_rank", 2},
                    {"norm", {{"type", "rms_norm"}, {"weight", "none"}, {"eps", 1e-6}}}},
                   4);
  mixer.expect_everywhere(
      golden_input(5, 4),
      rows_of_4({5.2546097249,  18.0988801719, 4.9027092657,   -15.3474181225, 9.1218285280,
                 36.3457532601, 11.2758649375, -30.0175961599, -22.0362558959, -32.5815398943,
                 3.7510862740,  34.6866966490, -4.0776029825,  -9.3208818002,  -1.1533930139,
                 8.6735831468,  2.7270164107,  13.2079897826,  4.6854734324,   -10.5784432127}),
      1e-9);
}

TEST(Mamba, AgainstTransformersJamba) {
  const MixerUnderTest mixer = golden_mixer({{"type", "mamba"},
                                             {"d_state", 3},
                                             {"d_conv", 3},
                                             {"dt_rank", 2},
                                             {"norm", {{"type", "rms_norm"}, {"eps", 1e-6}}}},
                                            4);
  mixer.expect_everywhere(
      golden_input(5, 4),
      rows_of_4({-3.9504465974,  2.5901860768,  2.6044960002,   -3.9435726069, -13.2831364578,
                 9.2642123984,   8.4691301123,  -13.6650663888, 20.6161243861, -7.0233250415,
                 -16.9665608979, 15.8397390345, 3.3095513201,   -0.3695041419, -3.1175441416,
                 1.9894882954,   -3.3654125760, 0.2503272571,   3.2353338437,  -1.9315190286}),
      2e-6);  // its norms are rounded to float32
}

TEST(RgLruBlock, AgainstTransformersRecurrentGemma) {
  const MixerUnderTest mixer =
      golden_mixer({{"type", "rg_lru"}, {"n_heads", 3}, {"width", 6}, {"d_conv", 3}}, 4);
  mixer.expect_everywhere(
      golden_input(5, 4),
      rows_of_4({4.5822591398,  1.1227524962,  -4.7269371583, 0.7217067735,  5.6817611210,
                 0.1542788769,  -5.4500323638, 1.9712184401,  7.3229078117,  -8.3464305788,
                 -3.7872949079, 9.8256886673,  1.8188710549,  -2.3781997901, -0.6028696128,
                 2.6197997392,  1.8326731102,  -0.2578514095, -1.4407658731, 0.8251079623}),
      1e-9);
}

TEST(RgLruBlock, SpecifiedValues) {
  const auto in_out = [](double a, double b) {  // given as [block, in, out]
    return ops::gen({2, 2, 2}, a, b).transpose(1, 2).reshape({4, 2});
  };
  const MixerUnderTest mixer = golden_mixer({{"type", "rg_lru"}, {"n_heads", 2}}, 4,
                                            {{"x.weight", ops::gen({4, 4}, .3, .1)},
                                             {"x.bias", ops::gen({4}, .2, .5)},
                                             {"y.weight", ops::gen({4, 4}, .5, .4)},
                                             {"y.bias", ops::gen({4}, .6, -.3)},
                                             {"conv.weight", ops::gen({4, 4}, .35, .25)},
                                             {"conv.bias", ops::gen({4}, .9, -.6)},
                                             {"input_gate.weight", in_out(.9, .3)},
                                             {"input_gate.bias", ops::gen({4}, .4, .6)},
                                             {"recurrent_gate.weight", in_out(.6, .2)},
                                             {"recurrent_gate.bias", ops::gen({4}, .8, -.1)},
                                             {"lambda", ops::gen({4}, .5, -.2)},
                                             {"out.weight", ops::gen({4, 4}, .7, -.2)},
                                             {"out.bias", ops::gen({4}, .1, .05)}});
  const Tensor x = ops::gen({5, 4}, .45, .2);
  std::unique_ptr<RowState> row;
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{5}, {1, 3, 1}}) {
    const Tensor y = mixer.split(x, lengths, &row);
    ops::expect_near(y[0], ops::tensor({3.94331679, -3.17027148, 2.60987546, -0.78933944}), 1e-8);
    ops::expect_near(y[4], ops::tensor({-4.30545654, 6.11320640, -6.63555172, 7.34967876}), 1e-8);
    ops::expect_near(row->fixed(0), ops::tensor({1.59283586, 2.09593878, -0.32594516, -1.34933374}),
                     1e-8);
    ops::expect_near(row->fixed(1)[2],
                     ops::tensor({2.06544403, 3.86855326, 1.53403442, -1.78907884}), 1e-8);
  }
}

/// The ends of what lambda is drawn from, each drawn alone.
TEST(RgLruBlock, GoldenLimitsOfLambda) {
  const MixerUnderTest mixer({{"type", "rg_lru"}, {"n_heads", 2}}, 4);
  for (spec::ParamDecl& decl : mixer.declared()) {
    if (decl.name != "lambda") continue;
    EXPECT_EQ(decl.init.a, 0.81);
    EXPECT_EQ(decl.init.b, 0.998001);
    spec::ParamDecl from = decl, to = decl;
    from.init.b = decl.init.a, to.init.a = decl.init.b;
    const RandomKey key(1);
    ops::expect_near(ops::initial_values(from, key, at::kDouble),
                     at::full({4}, -2.19722458, at::kDouble), 1e-8);
    ops::expect_near(ops::initial_values(to, key, at::kDouble),
                     at::full({4}, -6.90675478, at::kDouble), 1e-8);
    return;
  }
  FAIL() << "no lambda";
}

TEST(Rwkv4Mixer, AgainstTransformersRwkv) {
  const MixerUnderTest mixer = golden_mixer({{"type", "rwkv4"}, {"width", 6}}, 4);
  mixer.expect_everywhere(
      golden_input(5, 4),
      rows_of_4({-0.6704771976, 0.1897461518,  0.4543186132,  -0.7073053611, 0.4021034180,
                 0.0848092179,  -0.4987179754, 0.4833296907,  -0.6214233628, 0.8490579988,
                 -0.3458224725, -0.4550974604, -0.7378091120, 0.0626843536,  0.6663991729,
                 -0.8218454776, -0.7777284115, -0.7675604253, 1.6521323107,  -1.1145466854}),
      1e-9);
}

TEST(ShortConvMixer, AgainstTransformersLfm2) {
  const MixerUnderTest mixer = golden_mixer({{"type", "short_conv"}, {"bias", true}}, 4);
  mixer.expect_everywhere(
      golden_input(5, 4),
      rows_of_4({1.1681214687,   -2.8836307648, 6.6907054252,   -9.0519659436, 5.2289369005,
                 -6.3885902331,  9.0351137167,  -9.8313526259,  -7.7714279533, 14.6367290415,
                 -16.3877542877, 15.6029687119, -5.8089281628,  7.2513580992,  -4.8536777003,
                 1.9101098906,   15.6853687672, -18.5880858084, 20.8729477834, -19.2651958334}),
      1e-9);
}

// the formula; that of an encoder against transformers: tests/golden/families/deberta_v2
TEST(ConvolutionMixer, SeesThePastOrBothSides) {
  for (const bool causal : {true, false})
    for (const int64_t kernel : {2, 3, 4}) {
      SCOPED_TRACE(fmt::format("{} taps, causal {}", kernel, causal));
      const MixerUnderTest mixer = golden_mixer(
          {{"type", "convolution"}, {"kernel", kernel}, {"groups", 2}, {"act", "tanh"}}, 4, {},
          causal);
      const Tensor x_TD = golden_input(5, 4);
      const int64_t left = causal ? kernel - 1 : kernel / 2;
      Tensor want = at::zeros({5, 4}, at::kDouble);
      const Tensor w = mixer.values.at("weight"), b = mixer.values.at("bias");
      for (int64_t t = 0; t < 5; ++t)
        for (int64_t c = 0; c < 4; ++c) {
          double sum = b[c].item<double>();
          for (int64_t k = 0; k < kernel; ++k)
            for (int64_t i = 0; i < 2; ++i) {
              const int64_t at = t + k - left;
              if (at >= 0 && at < 5)
                sum += w[c][i][k].item<double>() * x_TD[at][c / 2 * 2 + i].item<double>();
            }
          want[t][c] = std::tanh(sum);
        }
      if (causal) {
        mixer.expect_everywhere(x_TD, want, 1e-9);
        continue;
      }
      const Tensor two = mixer.whole(at::cat({x_TD, x_TD}), {5, 5});
      ops::expect_near(two, at::cat({want, want}), 1e-9);
      const at::NoGradGuard no_gradients;
      ops::expect_near(mixer.whole(x_TD.to(at::kFloat), {5}), want, 5e-6);
    }
}

TEST(MlstmBlock, AgainstTheXlstmPackage) {
  const MixerUnderTest mixer =
      golden_mixer({{"type", "mlstm"}, {"n_heads", 2}, {"up_projection", spec::Json::object()}}, 4);
  mixer.expect_everywhere(
      golden_input(5, 4),
      rows_of_4({-2.0702610478, 2.2420435213,  -2.2537986025, 2.1046872644,  -1.2829802860,
                 1.3780951058,  -1.3748474432, 1.2734691026,  -1.3651132450, 0.7504056096,
                 -0.0821372598, -0.5919936932, 3.1429436059,  -3.8878166411, 4.3551941001,
                 -4.5117165966, -1.0256755782, 1.3536034485,  -1.5849169453, 1.7031059094}),
      1e-9);
}

}  // namespace
}  // namespace tessera::nn::sequence_mixers_test
