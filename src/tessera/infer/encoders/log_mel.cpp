#include "tessera/infer/encoders/log_mel.h"

#include <cmath>

#include "tessera/base/error.h"

namespace tessera::infer {
namespace {

constexpr double kLinear = 200.0 / 3, kBreak = 1000, kStep = 0.068751777420949;  // ln(6.4) / 27

double mel_of(double hertz) {
  return hertz < kBreak ? hertz / kLinear : kBreak / kLinear + std::log(hertz / kBreak) / kStep;
}

double hertz_of(double mel) {
  return mel < kBreak / kLinear ? mel * kLinear
                                : kBreak * std::exp(kStep * (mel - kBreak / kLinear));
}

/// [mels, n_fft / 2 + 1]
Tensor triangles(const LogMelOptions& o) {
  const int64_t bins = o.n_fft / 2 + 1;
  std::vector<double> edges;
  const double top = mel_of(static_cast<double>(o.rate) / 2);
  for (int64_t m = 0; m < o.mels + 2; ++m)
    edges.push_back(hertz_of(top * static_cast<double>(m) / static_cast<double>(o.mels + 1)));
  Tensor m_MF = at::empty({o.mels, bins}, at::kDouble);
  auto* out = m_MF.data_ptr<double>();
  for (int64_t m = 0; m < o.mels; ++m)
    for (int64_t f = 0; f < bins; ++f) {
      const auto i = static_cast<size_t>(m);
      const double hertz = static_cast<double>(f * o.rate) / static_cast<double>(o.n_fft);
      const double rise = (hertz - edges[i]) / (edges[i + 1] - edges[i]),
                   fall = (edges[i + 2] - hertz) / (edges[i + 2] - edges[i + 1]);
      out[m * bins + f] = std::max(0.0, std::min(rise, fall)) * 2 / (edges[i + 2] - edges[i]);
    }
  return m_MF;
}

}  // namespace

Tensor log_mel(const format::Sound& sound, const LogMelOptions& o) {
  if (sound.rate != o.rate || sound.channels != 1)
    fail(ErrorKind::input, "log_mel", "{}: {} channels at {} Hz; expected one at {} Hz", sound.file,
         sound.channels, sound.rate, o.rate);
  Tensor x_S = at::tensor(sound.samples, at::kDouble);
  if (o.samples > 0) {
    x_S = x_S.slice(0, 0, o.samples);
    x_S = at::constant_pad_nd(x_S, {0, o.samples - x_S.size(0)});
  }
  if (x_S.size(0) <= o.n_fft / 2)
    fail(ErrorKind::input, "log_mel", "{}: {} samples; expected more than {}, half a window",
         sound.file, x_S.size(0), o.n_fft / 2);
  const int64_t half = o.n_fft / 2, n = x_S.size(0);
  const Tensor mirrored =
      at::cat({x_S.slice(0, 1, half + 1).flip(0), x_S, x_S.slice(0, n - half - 1, n - 1).flip(0)});
  const Tensor hann = 0.5 - 0.5 * at::cos(at::arange(o.n_fft, at::kDouble) *
                                          (2 * M_PI / static_cast<double>(o.n_fft)));
  // there is one window more than hops: the last is dropped
  const Tensor frames_TN = mirrored.unfold(0, o.n_fft, o.hop).slice(0, 0, n / o.hop) * hann;
  const Tensor power_TF = at::fft_rfft(frames_TN).abs().square();
  const Tensor log_MT = at::matmul(triangles(o), power_TF.t()).clamp_min(1e-10).log10();
  return ((at::maximum(log_MT, log_MT.max() - 8) + 4) / 4).to(at::kFloat).contiguous();
}

}  // namespace tessera::infer
