#include "tessera/train/objective/next_token/early_exit.h"

namespace tessera::train {

std::vector<double> EarlyExit::weights(int64_t layers, int64_t step, int64_t steps) const {
  const int64_t last = layers - 1;
  std::vector<double> out(static_cast<size_t>(layers), 0.0);
  double sum = 0, before = 0;  // of all; s times the sum of layer numbers so far
  for (int64_t l = 0; l < layers; ++l) {
    const bool takes_part =
        l == last || (curriculum == ExitCurriculum::all) ||
        (curriculum == ExitCurriculum::rotational && l % period == step % period) ||
        (curriculum == ExitCurriculum::gradual && step * 2 * layers >= (last - l) * steps);
    const double e =
        l == last ? static_cast<double>(last) + before : before + scale * static_cast<double>(l);
    before += scale * static_cast<double>(l);
    if (takes_part) sum += out[static_cast<size_t>(l)] = e;
  }
  if (sum == 0) return {1};  // a single layer
  for (double& weight : out) weight /= sum;
  return out;
}

}  // namespace tessera::train
