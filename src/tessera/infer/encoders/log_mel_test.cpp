// Log-mel spectrograms against transformers 5.23's WhisperFeatureExtractor
// (tools/golden/features.py).
#include "tessera/infer/encoders/log_mel.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/base/testing.h"

namespace tessera::infer::log_mel_test {
namespace {

/// A sweep and noise of 1.25 s, as 16 bits hold them.
format::Sound sweep() {
  format::Sound sound{"test.wav", 16000, 1, {}};
  for (int64_t n = 0; n < 20000; ++n) {
    const double s = static_cast<double>(n) / 16000;
    const double tone = std::sin(2 * M_PI * (200 * s + 1500 * s * s)),
                 noise = static_cast<double>((n * 7919 + 104729) % 65537) / 32768 - 1;
    sound.samples.push_back(
        static_cast<float>(std::nearbyint((0.4 * tone + 0.05 * noise) * 32767) / 32768));
  }
  return sound;
}

void expect_bands(int64_t mels, double sum, const std::vector<double>& want) {
  LogMelOptions options;
  options.mels = mels;
  const Tensor got = log_mel(sweep(), options);
  ASSERT_EQ(got.sizes(), at::IntArrayRef({mels, 3000}));
  EXPECT_NEAR(got.to(at::kDouble).sum().item<double>(), sum,
              1e-6 * static_cast<double>(mels * 3000));
  size_t i = 0;
  for (int64_t m = 0; m < mels; m += mels / 8)
    for (const int64_t t : {0, 1, 50, 99, 124, 125, 126, 1000, 2999}) {
      EXPECT_NEAR(got[m][t].item<double>(), want[i], 1e-4) << m << " " << t;
      ++i;
    }
  EXPECT_EQ(i, want.size());
}

TEST(LogMel, AgainstTransformersWhisper) {
  expect_bands(
      80, -136555.925079,
      {1.117430,  0.520711,  -0.264787, -0.111649, -0.067339, 0.236917,  -0.323721, -0.602867,
       -0.602867, 0.850476,  0.303706,  -0.023586, -0.022761, -0.045353, 0.106964,  -0.322270,
       -0.602867, -0.602867, 0.497713,  -0.167939, -0.076123, -0.043257, 0.026781,  0.294541,
       -0.283123, -0.602867, -0.602867, 0.252580,  0.030728,  -0.020363, -0.002358, -0.009768,
       0.288932,  -0.258371, -0.602867, -0.602867, 0.240486,  0.051418,  1.340489,  0.060593,
       0.053098,  0.381340,  -0.215013, -0.602867, -0.602867, 0.400150,  0.273887,  0.264872,
       0.268271,  0.277785,  0.404660,  -0.183110, -0.602867, -0.602867, 0.358449,  0.278435,
       0.275672,  0.277348,  0.553071,  0.791419,  0.227213,  -0.602867, -0.602867, 0.112925,
       0.102466,  0.105577,  0.103399,  0.108902,  0.384843,  -0.121485, -0.602867, -0.602867});
  expect_bands(
      128, -201024.592626,
      {1.041671,  0.444952,  -0.340546, -0.187409, -0.143098, 0.161157,  -0.399481, -0.553797,
       -0.553797, 0.906103,  0.363869,  0.043935,  0.041144,  0.019841,  0.156451,  -0.276652,
       -0.553797, -0.553797, 0.483970,  -0.216179, -0.040686, -0.016224, 0.015696,  0.257165,
       -0.299464, -0.553797, -0.553797, 0.284214,  0.018450,  -0.039201, -0.016920, 0.026248,
       0.328777,  -0.228808, -0.553797, -0.553797, 0.224981,  -0.000958, 1.360752,  0.043881,
       -0.005362, 0.367288,  -0.220677, -0.553797, -0.553797, 0.430891,  0.300937,  0.289451,
       0.293681,  0.305236,  0.423685,  -0.181907, -0.553797, -0.553797, 0.176053,  0.029660,
       0.046839,  0.041627,  0.259618,  0.759508,  0.219043,  -0.553797, -0.553797, 0.140087,
       0.091513,  0.095364,  0.092408,  0.096774,  0.375729,  -0.119759, -0.553797, -0.553797});
}

TEST(LogMel, OfASoundAsItIs) {
  LogMelOptions options;
  options.samples = 0;
  const Tensor got = log_mel(sweep(), options);
  ASSERT_EQ(got.sizes(), at::IntArrayRef({80, 125}));
  // all but the windows that reach into the silence behind it
  const Tensor filled = log_mel(sweep());
  EXPECT_LT((got - filled.narrow(1, 0, 125)).narrow(1, 0, 123).abs().max().item<double>(), 1e-6);
}

TEST(LogMel, RefusesInOneLine) {
  format::Sound sound = sweep();
  sound.rate = 44100;
  test::expect_error(ErrorKind::input, "test.wav: 1 channels at 44100 Hz; expected one at 16000 Hz",
                     [&] { log_mel(sound); });
  sound = {"short.wav", 16000, 1, std::vector<float>(200, 0.5F)};
  LogMelOptions options;
  options.samples = 0;
  test::expect_error(ErrorKind::input, "short.wav: 200 samples; expected more than 200",
                     [&] { log_mel(sound, options); });
  sound.samples.clear();
  EXPECT_EQ(log_mel(sound).size(1), 3000);  // silence
}

}  // namespace
}  // namespace tessera::infer::log_mel_test
