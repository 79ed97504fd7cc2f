// Options of mixers against plain loops (tools/golden/mixer_options.py).
#include "tessera/base/testing.h"
#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn::mixer_options_test {
namespace {

using spec::Json;

Tensor rows_of_4(const std::vector<double>& values) {
  return ops::tensor(values, {5, 4});
}

TEST(FourierOptions, GoldenRealPartAfterEachTransform) {
  golden_mixer({{"type", "fourier"}, {"real", "each"}}, 4, {}, /*causal=*/false)
      .expect_everywhere(
          golden_input(5, 4),
          rows_of_4({3.2776271208,  -0.6537980739, -0.4838383711, -0.6537980739, 8.1858875871,
                     -0.6564551058, -0.2741912036, -0.6564551058, -3.2903277145, -0.6502425851,
                     -0.7643762801, -0.6502425851, -3.2903277145, -0.6502425851, -0.7643762801,
                     -0.6502425851, 8.1858875871,  -0.6564551058, -0.2741912036, -0.6564551058}),
          1e-9);
}

TEST(FourierOptions, GoldenBlends) {
  const auto blend = [](double share, const char* real) {
    return golden_mixer({{"type", "fourier"}, {"blend", share}, {"real", real}, {"max_length", 5}},
                        4, {},
                        /*causal=*/false);
  };
  blend(0.7, "once")
      .expect_everywhere(
          golden_input(5, 4),
          rows_of_4({2.4528075174,  -0.5852318596, -0.3909770189, -0.2865646753, 6.0903865285,
                     -1.3722813251, -0.6700242588, 0.8511558056,  -2.6602690935, -0.0725704300,
                     -0.2192591253, -1.1006110856, -2.4667013033, -0.9570995889, -0.2310381337,
                     -0.2062783326, 6.1772635285,  0.6383471654,  -0.6753109075, -1.1550726406}),
          1e-9);
  blend(0.25, "each")
      .expect_everywhere(
          golden_input(5, 4),
          rows_of_4({1.2155781124,  -0.4823825380, -0.2516849906, 0.2642854226,  2.9471349407,
                     0.1898033640,  -1.2637738416, 0.4767481547,  -1.7151811619, -0.0386998509,
                     0.5984166070,  -0.9435261829, -1.2312616865, -0.5847474410, 0.5689690860,
                     -0.3729696074, 3.1643274408,  -0.0552734459, -1.2769904634, 0.7328250753}),
          1e-9);
}

TEST(LogNAttention, GoldenBeyondTheLengthOfTrainingAndBefore) {
  const auto mixer = [](bool below) {
    return golden_mixer({{"type", "attention"},
                         {"n_heads", 2},
                         {"temperature", {{"log_length", 3}, {"log_below", below}}}},
                        4);
  };
  mixer(false).expect_everywhere(
      golden_input(5, 4),
      rows_of_4({0.2551234414,  -0.2005115217, 0.1438318884,  -0.0856690328, 0.1400436399,
                 -0.1346265084, 0.1278210824,  -0.1196975406, 1.2665076245,  -1.4931808734,
                 1.7044561525,  -1.8981547503, 0.5566687785,  -0.7335515936, 0.9028698828,
                 -1.0628776033, -0.8401667148, 1.0320455502,  -1.2132817323, 1.3820063188}),
      1e-9);
  mixer(true).expect_everywhere(
      golden_input(5, 4),
      rows_of_4({0.2551234414,  -0.2005115217, 0.1438318884,  -0.0856690328, 0.1536855879,
                 -0.1424845926, 0.1298142686,  -0.1158052748, 1.2665076245,  -1.4931808734,
                 1.7044561525,  -1.8981547503, 0.5566687785,  -0.7335515936, 0.9028698828,
                 -1.0628776033, -0.8401667148, 1.0320455502,  -1.2132817323, 1.3820063188}),
      1e-9);
}

TEST(RetentionOptions, GoldenLearnedDecays) {
  golden_mixer({{"type", "retention"}, {"n_heads", 2}, {"angles", "none"}, {"decay", "learned"}}, 4)
      .expect_everywhere(
          golden_input(5, 4),
          rows_of_4({0.3591718042, 1.9074788094, 2.1962064185, 1.0346970234, 0.2030425947,
                     2.1267709339, 2.6461131089, 1.4181281129, 1.3515282935, 3.5827101457,
                     3.4480948738, 1.0365739622, 0.3417036389, 1.6684986179, 1.8935217338,
                     0.8681818312, 0.4556552462, 3.1425632960, 3.7543196015, 1.8869586591}),
          1e-9);
}

TEST(RetentionOptions, LearnedDecaysBeginAsTheFixedOnes) {
  const Json json = {{"type", "retention"}, {"n_heads", 4}};
  Json learned = json;
  learned["decay"] = "learned";
  MixerUnderTest one(json, 16), other(learned, 16);
  for (const spec::ParamDecl& decl : other.declared())
    if (decl.name == "decay") other.values["decay"] = ops::tensor(decl.init.values);
  one.fill();
  for (const auto& [name, value] : one.values) other.values[name] = value;
  const Tensor x = golden_input(6, 16);
  ops::expect_near(other.whole(x, {6}), one.whole(x, {6}), 1e-12);
}

TEST(MixerOptions, RefusedInOneLine) {
  const auto refused = [](const char* json, const char* text, bool causal = true) {
    test::expect_error(ErrorKind::spec, text, [&] { MixerUnderTest(json, 12, causal); });
  };
  refused(R"({"type": "fourier", "transform": "learned", "max_length": 8, "real": "each"})",
          "real and blend are of transform fourier, and it is learned", false);
  refused(R"({"type": "fourier", "blend": 0.5})", "max_length = 0", false);
  refused(R"({"type": "fourier", "blend": 1.5, "max_length": 8})",
          ".blend] found 1.5; expected at most 1", false);
  refused(R"({"type": "attention", "n_heads": 2, "temperature": {"log_length": 1}})",
          "log_length = 1; expected at least 2");
  refused(R"({"type": "attention", "n_heads": 2, "temperature": {"log_below": true}})",
          "log_below without a log_length");
  refused(R"({"type": "performer", "n_heads": 2, "rows": "hadamard"})",
          "head_dim = 6 with rows hadamard; expected a power of two");
}

TEST(MixerOptions, ANumberMayBeAWholeOneOfAnySize) {
  EXPECT_NO_THROW(MixerUnderTest(
      R"({"type": "attention", "n_heads": 2, "position": {"type": "rope", "theta": 100000000000}})",
      12, true));
  test::expect_error(
      ErrorKind::spec, ".n_heads] found 2147483648; expected at most 1073741824",
      [&] { MixerUnderTest(R"({"type": "attention", "n_heads": 2147483648})", 12); });
  test::expect_error(ErrorKind::spec, ".order] found 65; expected at most 64", [&] {
    MixerUnderTest(R"({"type": "hyena", "max_length": 8, "order": 65})", 12);
  });
  test::expect_error(ErrorKind::spec, ".n_heads] found null; expected an integer",
                     [&] { MixerUnderTest(R"({"type": "attention", "n_heads": null})", 12); });
}

}  // namespace
}  // namespace tessera::nn::mixer_options_test
