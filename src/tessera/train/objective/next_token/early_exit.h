// Early-exit losses (LayerSkip): losses at the outputs of layers, with the model's final norm and
// head, so that the model can stop after fewer layers. Elhoushi et al. 2024, arXiv:2404.16710, sec.
// 3.1.2:
//   e(l) = s sum_{i <= l} i for l < L - 1,   e(L - 1) = L - 1 + s sum_{i < L - 1} i
//   weights e(l) C(t, l) / sum of the same; C selects the layers of update t, always including the
//   last
// Torch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/spec/fields.h"

namespace tessera::train {

enum class ExitCurriculum {
  all,         // every layer in every update
  rotational,  // layers l with l mod period = t mod period
  gradual,     // from the last to the first, one more every steps / 2 L updates
};

struct EarlyExit {
  double scale = 0;  // s; 0 = the last layer only
  ExitCurriculum curriculum = ExitCurriculum::rotational;
  int64_t period = 4;

  static constexpr auto fields() {
    using C = EarlyExit;
    return std::tuple{
        spec::field("scale", &C::scale, "how much the losses of earlier layers weigh; 0 = none",
                    {.min = 0}),
        spec::field(
            "curriculum", &C::curriculum,
            "which layers take part: all; rotational: every `period`-th, in turns; gradual: "
            "one more after another, from the last on"),
        spec::field("period", &C::period, "of rotational", {.min = 1})};
  }
  /// Weights by layer, summing to 1, for update `step`, from 0, of `steps`.
  std::vector<double> weights(int64_t layers, int64_t step, int64_t steps) const;
};

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::ExitCurriculum> {
  using E = tessera::train::ExitCurriculum;
  static constexpr std::array names{std::pair{E::all, "all"},
                                    std::pair{E::rotational, "rotational"},
                                    std::pair{E::gradual, "gradual"}};
};
