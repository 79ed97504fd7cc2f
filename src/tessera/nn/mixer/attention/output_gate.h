// A gate of attention: numbers projected from the mixer's input multiply what the heads have read,
// the values, or the output.
//   o_i <- o_i * act(W_g x_i + b_g)
// Qiu et al. 2025, arXiv:2505.06708 (gated attention).
#pragma once

#include "tessera/spec/fields.h"

namespace tessera::nn {

enum class OutputGate {
  none,
  headwise,     // one number per head
  elementwise,  // one number per channel of every head (Qwen3-Next)
};
enum class GatePlace {
  after_sdpa,   // on what the heads have read
  after_value,  // on the values, before they are read
  after_o,      // on the output projection's result
};
enum class GateActivation { sigmoid, silu, softplus };

}  // namespace tessera::nn

template <>
struct tessera::spec::EnumNames<tessera::nn::OutputGate> {
  using G = nn::OutputGate;
  static constexpr std::array names{std::pair{G::none, "none"}, std::pair{G::headwise, "headwise"},
                                    std::pair{G::elementwise, "elementwise"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::GatePlace> {
  using P = nn::GatePlace;
  static constexpr std::array names{std::pair{P::after_sdpa, "after_sdpa"},
                                    std::pair{P::after_value, "after_value"},
                                    std::pair{P::after_o, "after_o"}};
};
template <>
struct tessera::spec::EnumNames<tessera::nn::GateActivation> {
  using A = nn::GateActivation;
  static constexpr std::array names{std::pair{A::sigmoid, "sigmoid"}, std::pair{A::silu, "silu"},
                                    std::pair{A::softplus, "softplus"}};
};

namespace tessera::nn {

struct OutputGateConfig {
  OutputGate gate = OutputGate::none;
  GatePlace gate_at = GatePlace::after_sdpa;
  GateActivation gate_act = GateActivation::sigmoid;
  bool gate_bias = false;

  static constexpr auto fields() {
    using C = OutputGateConfig;
    using spec::field;
    return std::tuple{
        field("gate", &C::gate, "a projection of the input through gate_act, as a factor"),
        field("gate_at", &C::gate_at, "on what: the heads' outputs, the values, or the output"),
        field("gate_act", &C::gate_act, "what its numbers pass through"),
        field("gate_bias", &C::gate_bias, "whether that projection has a bias")};
  }
  bool gates() const { return gate != OutputGate::none; }
  /// Throws Error(spec) where the others are given without a gate, or a gate by heads is on the
  /// output, which has none.
  void check_gate(const spec::Scope& scope) const;

  /// What gates multiply: query heads and key/value heads, channels of a value and of the output.
  struct Shape {
    int64_t n_heads, n_kv_heads, value_dim, d_model;
  };
  /// Declares "gate", a projection of `width` channels, where there is one.
  void declare_gate(spec::ParamList& list, const Shape& shape, int64_t width) const;
};

}  // namespace tessera::nn
