// What the tests of the mixers over segments share.
#pragma once

#include "tessera/nn/mixer/mixer_testing.h"

namespace tessera::nn {

/// What query i of a head sees, in order of its keys.
struct SeenKey {
  Tensor k, v;          // [D]
  double distance = 0;  // to the query
};

/// Weights gen() apart from each other, and large enough that a wrong key shows.
inline void fill_large(MixerUnderTest& m) {
  m.fill({.size = 1});
}

/// [sin(r w_0) .., cos(r w_0) ..], w_m = 10000^(-2m / width).
inline Tensor halves_sinusoid(double r, int64_t width) {
  Tensor out = at::empty({width}, at::kDouble);
  for (int64_t m = 0; m < width / 2; ++m) {
    const double angle =
        r * std::pow(10000, -2 * static_cast<double>(m) / static_cast<double>(width));
    out[m] = std::sin(angle);
    out[m + width / 2] = std::cos(angle);
  }
  return out;
}

/// Attention of one query of head `a` with Transformer-XL's terms, key after key; differentiable.
inline Tensor xl_attend(MixerUnderTest& m,
                        int64_t a,
                        const Tensor& q_D,
                        const std::vector<SeenKey>& seen,
                        double clamp = 1e9) {
  const int64_t d = q_D.size(0), width = m.scope.d_model;
  const Tensor u = m.values["position.u"][a], w = m.values["position.w"][a],
               relative = m.values["position.relative.weight"].narrow(0, a * d, d);
  std::vector<Tensor> scores, values;
  for (const SeenKey& key : seen) {
    const Tensor r = at::mv(relative, halves_sinusoid(std::min(key.distance, clamp), width));
    scores.push_back(((q_D + u).dot(key.k) + (q_D + w).dot(r)) / std::sqrt(static_cast<double>(d)));
    values.push_back(key.v);
  }
  return at::mv(at::stack(values).t(), at::softmax(at::stack(scores), 0));
}

}  // namespace tessera::nn
