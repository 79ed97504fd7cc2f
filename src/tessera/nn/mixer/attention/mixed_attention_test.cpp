// Mixed attention against transformers' layer of ConvBERT in float64 (tools/golden/encoder_mixers.py),
// and its refusals.
#include "tessera/nn/mixer/attention/mixed_attention.h"

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::mixed_attention_test {
namespace {

constexpr const char* kBiased =
    R"({"type": "mixed_attention", "n_heads": 2, "kernel": 3, "conv_bias": true,
        "bias": {"q": true, "k": true, "v": true, "o": true}})";

TEST(MixedAttention, GoldenOfConvBert) {
  MixerUnderTest mixer(kBiased, 8, /*causal=*/false);
  mixer.fill();
  mixer.expect_everywhere(
      golden_input(5, 8),
      ops::tensor({-0.3269460194, -0.0679919817, -0.6346292191, 0.2151260149, 0.5396195198, 0.0520313746,
                   -0.0340438263, -0.8763231460, 0.5812041410, -0.7980079393, -0.1194765799, -0.0592445563,
                   0.5594036830, 0.2878290152, -0.5135596411, -0.1772149195, -0.2713591826, -0.1101148580,
                   -0.6080896215, 0.2055049762, 0.5318379386, 0.0768240630, -0.0746002332, -0.8220435250,
                   0.5927518398, -0.8164997354, -0.0949710599, -0.0885308600, 0.5919972956, 0.2535679681,
                   -0.4793549274, -0.2096423665, -0.1229135878, -0.3924142702, -0.2061396535, -0.2958723363,
                   1.1074169207, -0.5439976231, 0.5602289061, -1.4389401133},
                  {5, 8}),
      1e-9);
}

TEST(MixedAttention, OneTapIsAttentionBesideAProjection) {
  MixerUnderTest mixer(R"({"type": "mixed_attention", "n_heads": 2, "kernel": 1})", 8, false);
  mixer.fill();
  // the weight of the only tap is 1, whatever the span
  MixerUnderTest other = mixer;
  for (const char* name : {"span_conv.weight", "span.weight", "taps.weight"})
    other.values[name] = other.values[name] * 3 + 1;
  const Tensor x = golden_input(6, 8);
  ops::expect_near(mixer.run(x, at::kDouble), other.run(x, at::kDouble), 1e-12);
}

TEST(MixedAttention, RefusesDecodersAndEvenKernels) {
  test::expect_error(ErrorKind::spec, "mixed_attention needs an encoder",
                     [] { MixerUnderTest(kBiased, 8); });
  test::expect_error(ErrorKind::spec, "kernel = 4; expected an odd number of taps", [] {
    MixerUnderTest(R"({"type": "mixed_attention", "n_heads": 2, "kernel": 4})", 8, false);
  });
  test::expect_error(ErrorKind::spec, "2 n_heads = 6 does not divide d_model = 8", [] {
    MixerUnderTest(R"({"type": "mixed_attention", "n_heads": 3})", 8, false);
  });
}

}  // namespace
}  // namespace tessera::nn::mixed_attention_test
