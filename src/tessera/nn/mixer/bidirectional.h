// A recurrent mixer that reads a document from both ends, so that an encoder can hold it:
//   f = F(x),  b = reverse(B(reverse(x)));  y = f + b,  (f + b) / 2,  W [f; b],  or
//   y = g * f + (1 - g) * b,  g = sigmoid(W_g x)
// F and B are one mixer with weights of their own; `share` names those that both use. Sharing the
// projections in and out is a Vision Mamba block: W_out (y_f * z) + W_out (y_b * z) is
// W_out ((y_f + y_b) * z). Schuster, Paliwal 1997 (bidirectional recurrent networks); Zhu et al.
// 2024, arXiv:2401.09417 (Vision Mamba); Erol et al. 2024, arXiv:2406.03344 (Audio Mamba).
// Golden: tools/golden/bidirectional.py. Each document of a call is reversed within itself.
#pragma once

#include "tessera/spec/fields.h"
#include "tessera/spec/placed.h"

namespace tessera::nn {

enum class Directions {
  sum,
  mean,
  concat,  // concatenated, and a projection to d_model
  gate,    // a share for every channel, from the input
};

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::Directions> {
  using D = nn::Directions;
  static constexpr std::array names{std::pair{D::sum, "sum"}, std::pair{D::mean, "mean"},
                                    std::pair{D::concat, "concat"}, std::pair{D::gate, "gate"}};
};

namespace tessera::nn {

struct BidirectionalConfig final : spec::Config, spec::ReadsEarlierParts {
  spec::Part<spec::Slot::mixer> inner;
  Directions combine = Directions::sum;
  std::vector<std::string> share;

  static constexpr auto fields() {
    using C = BidirectionalConfig;
    using spec::field;
    return std::tuple{
        field("inner", &C::inner, "the recurrent mixer", {.required = true}),
        field("combine", &C::combine, "how the two readings become one"),
        field("share", &C::share,
              "parameters of the mixer that both directions use, by name or by what comes before a "
              "dot (\"in\": in.weight and in.bias); \"*\" = all")};
  }
  static spec::Info info() {
    return {.summary = "A recurrent mixer that reads each document forward and backward.",
            .paper =
                "Schuster, Paliwal: Bidirectional Recurrent Neural Networks, IEEE TSP 1997; Zhu et "
                "al.: Vision Mamba, arXiv:2401.09417",
            .year = 1997,
            .causality = spec::Causality::none,
            .forms = {}};
  }
  static spec::Json example(const spec::Scope&, int64_t) {
    return {{"inner", {{"type", "mamba"}}}, {"share", {"in", "out"}}};
  }
  /// Each direction is causal.
  spec::Scope child_scope(spec::Scope scope, std::string_view) const {
    scope.causal = true;
    return scope;
  }
  void check(const spec::Scope& scope) const override;
  void check_behind(const std::vector<spec::Placed>& before,
                    const spec::Scope& scope) const override;
  bool shares() const override;
  void params(spec::ParamList& list, const spec::Scope& scope) const override;
  int64_t max_positions() const override { return inner.config->max_positions(); }
  double extra_flops(const spec::Scope& scope, int64_t context) const override;

  /// Whether both directions use the mixer's parameter `name`.
  bool shared(std::string_view name) const;
};

}  // namespace tessera::nn
