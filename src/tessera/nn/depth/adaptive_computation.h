// Adaptive computation time: neighbouring layers are the steps of a loop (one layer, where they
// share their parameters), and every token takes as many of them as a gate finds it needs. With s_n
// the state after step n and h_n = sigmoid(w . s_n + b):
//   N = the first n with sum_{i <= n} h_i >= 1 - threshold, or the last step
//   p_n = h_n for n < N,  p_N = R = 1 - sum_{i < N} h_i,   y = sum_{n <= N} p_n s_n
// A token that has halted keeps its state, and others still attend to it. The loss N + R a token,
// times `ponder`, keeps the steps few; its gradient passes R alone. Whether a token halts follows
// from that token and those before it, so that text is generated as it is trained. Graves 2016,
// arXiv:1603.08983, sec. 2; in Transformers: Dehghani et al. 2018, arXiv:1807.03819, sec. 2.3
// (there the gate reads s_{n-1}, and the last step need not use up the rest).
#pragma once

#include "tessera/nn/depth/depth_config.h"

namespace tessera::nn {

struct AdaptiveComputationConfig final : DepthConfig {
  double threshold = 0.01;
  double ponder = 0.01;
  std::string gate = "halting";

  static constexpr auto fields() {
    using C = AdaptiveComputationConfig;
    return std::tuple{
        spec::field("threshold", &C::threshold, "what may be missing to 1 when a token halts",
                    {.min = 0, .below = 1}),
        spec::field("ponder", &C::ponder, "factor on the loss of steps", {.min = 0}),
        spec::field("gate", &C::gate,
                    "name of the gate that the steps of one loop share: another one begins another "
                    "loop")};
  }
  static spec::Info info() {
    return {
        .summary = "Every token takes as many steps of a loop of layers as it needs.",
        .paper =
            "Graves: Adaptive Computation Time for Recurrent Neural Networks, arXiv:1603.08983; "
            "Dehghani et al.: Universal Transformers, arXiv:1807.03819",
        .year = 2016,
        .forms = {.recurrent = true}};
  }
  void check(const spec::Scope& scope) const override {
    if (gate.empty() ||
        gate.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != std::string::npos)
      fail(ErrorKind::spec, scope.path + ".gate",
           "found \"{}\"; expected small letters, digits and underscores", gate);
  }
  void params(spec::ParamList& list, const spec::Scope& scope) const override {
    spec::ParamList shared = spec::ParamList::shared(gate);
    shared.add({.name = "weight", .shape = {1, scope.d_model}, .init = spec::Init::normal(0.02)});
    // towards few steps at first: Graves 2016, sec. 3
    shared.add({.name = "bias",
                .shape = {1},
                .init = spec::Init::constant(1),
                .kind = spec::ParamKind::bias});
    list.append(shared);
  }
  std::string loop() const override { return gate; }
};

}  // namespace tessera::nn
