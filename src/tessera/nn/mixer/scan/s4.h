// S4: a convolution over the whole past whose kernel is a state-space system per channel, with a
// state matrix that is diagonal plus rank one, from HiPPO-LegS.
//   x' = (Lambda - P P^*) x + B u, y = C x + D u, discretised with a step per channel;
//   out = GLU(W gelu(y)),  GLU(a, b) = a sigmoid(b)
// Gu, Goel, Re 2021, arXiv:2111.00396. Forms: convolution by FFT without a state, the recurrence
// with one. The published bilinear rule keeps the structure: a kernel from Cauchy sums, steps of
// order N by Woodbury. A zero-order hold does not: the exponential of a dense matrix per channel,
// steps of order N^2.
#pragma once

#include "tessera/nn/mixer/scan/discretisation.h"

namespace tessera::nn {

struct S4Config final : spec::Config {
  int64_t d_state = 64;
  Discretisation discretisation = Discretisation::bilinear;
  double dt_min = 0.001;
  double dt_max = 0.1;

  static constexpr auto fields() {
    using C = S4Config;
    using spec::field;
    return std::tuple{field("d_state", &C::d_state, "N, real state dimensions of a channel; even",
                            {.min = 2, .max = 512}),
                      field("discretisation", &C::discretisation,
                            "from continuous time to steps; zoh has a dense matrix per channel"),
                      field("dt_min", &C::dt_min, "smallest initial step", {.above = 0}),
                      field("dt_max", &C::dt_max, "largest initial step", {.min = 0})};
  }
  static spec::Info info() {
    return {.summary =
                "Convolution over the whole past by a structured state-space system per "
                "channel that starts from HiPPO.",
            .paper =
                "Gu, Goel, Re: Efficiently Modeling Long Sequences with Structured State "
                "Spaces, arXiv:2111.00396",
            .year = 2021,
            .causality = spec::Causality::rounding,
            .forms = {.parallel = true, .recurrent = true, .recorded = true},
            .time = spec::Growth::linear_log};
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
