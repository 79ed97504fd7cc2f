// Log-mel spectrograms, the input of speech models.
//   P_tf = |FFT(hann * x[t hop - n/2, t hop + n/2))|^2, the sound mirrored at its ends
//   L = log10(max(M P, 1e-10)),  L <- max(L, max(L) - 8),  out = (L + 4) / 4
// M are triangles between frequencies that are equally far apart on Slaney's mel scale (linear
// below 1000 Hz, logarithmic above), each of area 1. Radford et al. 2022, arXiv:2212.04356, sec.
// 2.2; as transformers' WhisperFeatureExtractor computes it. Golden: tools/golden/features.py.
#pragma once

#include "tessera/format/wav.h"
#include "tessera/ops/tensor.h"

namespace tessera::infer {

struct LogMelOptions {
  int64_t rate = 16000;      // samples per second
  int64_t n_fft = 400;       // samples of a window
  int64_t hop = 160;         // from one window to the next, samples
  int64_t mels = 80;         // bands, up to half the rate
  int64_t samples = 480000;  // cut or padded with silence to this length; 0 = unchanged
};

/// [mels, samples / hop] float32 of mono sound. Throws Error(input) for another sample rate, or for
/// sound too short to be mirrored.
Tensor log_mel(const format::Sound& sound, const LogMelOptions& options = {});

}  // namespace tessera::infer
