// Batch norm: every channel over all tokens of a call,
//   in training  y = (x - mean) / sqrt(var + eps) * w + b    of the call's tokens, var divided by
//   N; else         the same with running_mean and running_var, which after every update of
//   training
//                move by `momentum` to the mean and the unbiased variance of all its tokens.
// Tokens of one call see each other through the statistics, so that encoders alone have it.
// Ioffe, Szegedy 2015, arXiv:1502.03167.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct BatchNormConfig final : spec::Config {
  double eps = 1e-5;
  double momentum = 0.1;
  bool affine = true;

  static constexpr auto fields() {
    using C = BatchNormConfig;
    return std::tuple{spec::field("eps", &C::eps, "added to the variance", {.min = 0}),
                      spec::field("momentum", &C::momentum,
                                  "how far the running statistics move at an update, 0 to 1",
                                  {.min = 0, .max = 1}),
                      spec::field("affine", &C::affine, "w and b of every channel; else neither")};
  }
  static spec::Info info() {
    return {.summary = "Every channel scaled by its statistics over the tokens of a batch.",
            .paper =
                "Ioffe, Szegedy: Batch Normalization: Accelerating Deep Network Training by "
                "Reducing Internal Covariate Shift, arXiv:1502.03167",
            .year = 2015,
            .forms = {}};
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
};

}  // namespace tessera::nn
