#include "tessera/nn/mixer/attention/output_gate.h"

namespace tessera::nn {

void OutputGateConfig::check_gate(const spec::Scope& scope) const {
  if (gate_bias && !gates())
    fail(ErrorKind::spec, scope.path, "gate_bias without a gate; set gate, or leave it out");
  if (!gates() && (gate_at != GatePlace::after_sdpa || gate_act != GateActivation::sigmoid))
    fail(ErrorKind::spec, scope.path,
         "gate_at and gate_act say what a gate does, and there is none; set gate, or leave them "
         "out");
  if (gate == OutputGate::headwise && gate_at == GatePlace::after_o)
    fail(ErrorKind::spec, scope.path,
         "gate headwise has no heads to act on after the output projection; use elementwise, or "
         "gate_at after_sdpa");
}

void OutputGateConfig::declare_gate(spec::ParamList& list,
                                    const Shape& shape,
                                    int64_t width) const {
  if (!gates()) return;
  const int64_t heads = gate_at == GatePlace::after_value ? shape.n_kv_heads : shape.n_heads;
  const int64_t numbers = gate_at == GatePlace::after_o  ? shape.d_model
                          : gate == OutputGate::headwise ? heads
                                                         : heads * shape.value_dim;
  list.linear("gate", numbers, width, gate_bias);
}

}  // namespace tessera::nn
