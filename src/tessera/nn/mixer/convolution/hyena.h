// Hyena: gates and convolutions over the whole past in turn; the filters are functions of the
// position, given by a small network.
//   x_0 .. x_{M-1}, v = conv(W_in u + b);  for i = M-1 .. 1: v <- k_i * (v x_i) + bias_i (v x_i)
//   out = W_out (v x_0) + b;  k(t) = MLP(p_t) (e^{-|delta| t / (L - 1)} + shift),  L = max_length
//   p_t = [t / (L - 1), cos f w_t, -sin f w_t], w_t = 2 pi t / L, f from 1e-4 to bands - 1
// with activation sin(frequency *) in the MLP. Poli et al. 2023, arXiv:2302.10866; with a shift of
// 0.05 HyenaDNA (Nguyen et al. 2023, arXiv:2306.15794), whose filters reach every distance.
//
// A filter as long as the context has no state of fixed size: the state holds the inputs v x_i of
// every long convolution, which a new token's sum reads all, and the last inputs of the short one.
// Training convolves whole documents by transforms, in T log T. Float32 inference on a CPU sums
// directly, in T^2, since every bit of a transform depends on how many tokens it holds.
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

struct HyenaConfig final : spec::Config {
  int64_t max_length = 0;
  int64_t order = 2;
  int64_t d_conv = 3;
  int64_t filter_width = 64;
  int64_t filter_layers = 2;
  int64_t bands = 1;
  double shift = 0;

  static constexpr auto fields() {
    using C = HyenaConfig;
    using spec::field;
    return std::tuple{
        field("max_length", &C::max_length,
              "L, the longest document; positions are told apart by "
              "t / L",
              {.min = 2, .required = true}),
        field("order", &C::order, "M: M - 1 long convolutions between M gates",
              {.min = 2, .max = 64}),
        field("d_conv", &C::d_conv, "taps of the short convolution; 1 = a factor per channel",
              {.min = 1}),
        field("filter_width", &C::filter_width, "hidden width of the filter's network", {.min = 1}),
        field("filter_layers", &C::filter_layers, "hidden layers of it, after the first",
              {.min = 0, .max = 64}),
        field("bands", &C::bands, "frequencies of the position's features", {.min = 1}),
        field("shift", &C::shift, "added to the filters' window, which else ends near 0",
              {.min = 0})};
  }
  static spec::Json example(const spec::Scope&, int64_t length) { return {{"max_length", length}}; }
  static spec::Info info() {
    return {.summary = "Gates and long convolutions whose filters are functions of the position.",
            .paper =
                "Poli et al.: Hyena Hierarchy, arXiv:2302.10866; Nguyen et al.: HyenaDNA, "
                "arXiv:2306.15794",
            .year = 2023,
            .causality = spec::Causality::rounding,
            .forms = {.parallel = true, .recurrent = true},
            .time = spec::Growth::quadratic};
  }
  void check(const spec::Scope& scope) const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  int64_t max_positions() const override { return max_length; }
  std::vector<spec::StateDecl> state(const spec::Scope& scope) const override;
  double extra_flops(const spec::Scope& scope, int64_t context) const override;
};

}  // namespace tessera::nn
