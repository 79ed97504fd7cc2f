// The gate of attention (OutputGateConfig) in a call.
#pragma once

#include <optional>

#include "tessera/nn/mixer/attention/output_gate.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/step_products.h"

namespace tessera::nn {

/// HeadGate of rows in memory (decode_step.h).
struct HeadGateStep {
  std::optional<StepProduct> product;  // none where there is no gate
  GatePlace at = GatePlace::after_sdpa;
  GateActivation act = GateActivation::sigmoid;

  bool acts(GatePlace here) const { return product && at == here; }
  /// Numbers for each token.
  int64_t width() const { return product ? product->rows() : 0; }
  /// Rows [first, first + count) of y [N, heads, width] times the gate of their tokens, `gate`
  /// [N, width()], which is the product and then passes through the activation; on this thread.
  void operator()(
      float* gate, int64_t first, int64_t count, int64_t heads, int64_t width, float* y) const;
};

class HeadGate {
 public:
  HeadGate(const Builder& builder, const OutputGateConfig& config);
  /// y, by heads [N, H, D] or [N, E], times the gate projected from x [N, width] where that acts
  /// `here`; else y.
  Tensor operator()(const Tensor& y,
                    const ops::SharedInput& x_ND,
                    GatePlace here,
                    const Context& context) const;
  HeadGateStep step(StepWeights& weights) const;

 private:
  GatePlace at_;
  GateActivation act_;
  Linear projection_;  // without a weight where there is no gate
};

}  // namespace tessera::nn
