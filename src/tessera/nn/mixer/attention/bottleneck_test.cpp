// Bottleneck blocks against transformers' layer of MobileBERT in float64
// (tools/golden/encoder_mixers.py), and their refusals.
#include "tessera/nn/mixer/attention/bottleneck.h"

#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::bottleneck_test {
namespace {

MixerUnderTest block(const char* attention, bool causal = false) {
  MixerUnderTest mixer(
      spec::Json{{"type", "bottleneck"},
                 {"width", 4},
                 {"n_heads", 2},
                 {"attention", attention},
                 {"project_bias", true},
                 {"bias", {{"q", true}, {"k", true}, {"v", true}, {"o", true}}},
                 {"n_ffns", 2},
                 {"ffn", {{"type", "mlp"}, {"act", "relu"}, {"d_hidden", 6}}}},
      8, causal);
  mixer.fill();
  return mixer;
}

TEST(Bottleneck, GoldenOfMobileBert) {
  block("stream").expect_everywhere(
      golden_input(5, 8),
      ops::tensor({0.6269816743, -0.0811915373, -0.4118371184, 0.5674279493, -0.3720931359, 0.0372754078,
                   0.1963249922, -0.2353482763, 0.6320381341, -0.0839752744, -0.4128001573, 0.5716278127,
                   -0.3773058990, 0.0407407917, 0.1964419885, -0.2389857004, 0.6273220323, -0.0814013772,
                   -0.4118689117, 0.5676845405, -0.3724386540, 0.0375268929, 0.1963007072, -0.2355640509,
                   0.6316072997, -0.0837158346, -0.4127508231, 0.5712958281, -0.3768670575, 0.0404274700,
                   0.1964638792, -0.2387045686, 0.6278348424, -0.0817051181, -0.4119350778, 0.5680855771,
                   -0.3729622030, 0.0378957230, 0.1962819001, -0.2359052255},
                  {5, 8}),
      1e-9);
  block("bottleneck").expect_everywhere(
      golden_input(5, 8),
      ops::tensor({0.3860321314, 0.2784031715, -0.8168502667, -0.4667960971, 1.1730462705, 0.3588614815,
                   -1.2150890864, -0.1498854673, 0.3410508305, 0.2700373170, -0.7741040067, -0.4470100542,
                   1.1355860948, 0.3290674925, -1.1855887408, -0.1122100988, 0.3785106620, 0.2763329022,
                   -0.8098818952, -0.4628641418, 1.1671283691, 0.3533484861, -1.2106440495, -0.1431849258,
                   0.3495844017, 0.2720753187, -0.7820931007, -0.4511824404, 1.1424604846, 0.3350764564,
                   -1.1908577621, -0.1196267464, 0.3695690794, 0.2742546422, -0.8014955453, -0.4585453653,
                   1.1598958334, 0.3470974489, -1.2050815551, -0.1354477999},
                  {5, 8}),
      1e-9);
}

TEST(Bottleneck, RefusesDecodersAndUnevenHeads) {
  test::expect_error(ErrorKind::spec, "bottleneck needs an encoder",
                     [] { block("stream", /*causal=*/true); });
  test::expect_error(ErrorKind::spec, "n_heads = 3 does not divide width = 4", [] {
    MixerUnderTest(R"({"type": "bottleneck", "width": 4, "n_heads": 3, "ffn": {"type": "mlp", "d_hidden": 6}})",
                   8, false);
  });
}

}  // namespace
}  // namespace tessera::nn::bottleneck_test
