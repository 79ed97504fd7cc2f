// S4D: a convolution over the whole past whose kernel is a diagonal state-space system per channel.
//   x' = A x + B u, y = 2 Re C x + D u with A diagonal, B = 1, discretised with a step per channel
//   out = GLU(W gelu(y)),  GLU(a, b) = a sigmoid(b)
// Gu, Gupta, Goel, Re 2022, arXiv:2206.11893. Forms: convolution by FFT without a state, the
// recurrence with one.
#pragma once

#include "tessera/nn/mixer/scan/discretisation.h"

namespace tessera::nn {

enum class S4dInit {
  lin,   // Im A = pi n
  inv,   // Im A = N / pi (N / (2n + 1) - 1)
  legs,  // the diagonal part of HiPPO-LegS
};
}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::S4dInit> {
  using I = nn::S4dInit;
  static constexpr std::array names{std::pair{I::lin, "lin"}, std::pair{I::inv, "inv"},
                                    std::pair{I::legs, "legs"}};
};

namespace tessera::nn {

struct S4dConfig final : spec::Config {
  int64_t d_state = 64;
  S4dInit init = S4dInit::lin;
  Discretisation discretisation = Discretisation::zoh;
  double dt_min = 0.001;
  double dt_max = 0.1;

  static constexpr auto fields() {
    using C = S4dConfig;
    using spec::field;
    return std::tuple{field("d_state", &C::d_state, "N, real state dimensions of a channel; even",
                            {.min = 2, .max = 512}),
                      field("init", &C::init, "initial state matrix"),
                      field("discretisation", &C::discretisation, "from continuous time to steps"),
                      field("dt_min", &C::dt_min, "smallest initial step", {.above = 0}),
                      field("dt_max", &C::dt_max, "largest initial step", {.min = 0})};
  }
  static spec::Info info() {
    return {.summary =
                "Convolution over the whole past by a diagonal state-space system per "
                "channel.",
            .paper =
                "Gu, Gupta, Goel, Re: On the Parameterization and Initialization of Diagonal "
                "State Space Models, arXiv:2206.11893",
            .year = 2022,
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
