// FIRE: a small network reads the distance as a part of the length so far.
//   b(i, j) = W2 relu(W1 x + b1),   x = ln(|c| (i - j) + 1) / (ln(|c| max(i, |m| L0) + 1) + 1e-6)
// c and m are learned numbers; a bias of the output would shift a whole row, which softmax does not
// see, so there is none. Depends on i as well as on the distance.
// Li et al. 2023, arXiv:2310.04418. Golden: additions 5.3.
#pragma once

#include "tessera/nn/position/position_config.h"

namespace tessera::nn {

struct FireConfig final : PositionConfig {
  static constexpr double kSmall = 1e-6;
  int64_t d_hidden = 32;
  double threshold = 512;
  double c = 0.1;

  static constexpr auto fields() {
    using C = FireConfig;
    return std::tuple{
        spec::field("d_hidden", &C::d_hidden, "hidden width of the network", {.min = 1}),
        spec::field("threshold", &C::threshold,
                    "L0: shorter contexts are measured as this one, times a learned m", {.min = 1}),
        spec::field("c", &C::c, "initial value of the learned c", {.min = 1e-9})};
  }
  static spec::Info info() {
    return {.summary = "A network of the distance relative to the length so far biases the scores.",
            .paper =
                "Li et al.: Functional Interpolation for Relative Positions Improves Long Context "
                "Transformers, arXiv:2310.04418",
            .year = 2023,
            .forms = {.recurrent = true},
            .place = spec::Place::score_bias};
  }
  void check(const spec::Scope& scope) const override {
    require_scores("fire", scope);
    if (!scope.causal)
      fail(ErrorKind::spec, scope.path,
           "fire measures distances to the past and cannot stand in an encoder; use \"t5\" or "
           "\"kerple\" there");
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
