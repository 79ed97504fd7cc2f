// The short causal convolution of a mixer: its weights, its tail in the state, its three paths.
#pragma once

#include "tessera/kernels/activation.h"
#include "tessera/nn/parts.h"

namespace tessera::nn {

class CausalConv {
 public:
  /// Weights `name`.weight and, where declared, `name`.bias (causal_conv_decl.h).
  CausalConv(const Builder& builder, const std::string& name, kernels::Activation act);
  /// x_NC after the convolution and its activation. `slot` is the tail's place in the state.
  Tensor operator()(const Tensor& x_NC,
                    const Batch& batch,
                    const StateRows* rows,
                    size_t slot) const;

 private:
  WeightPtr weight_, bias_;
  kernels::Activation act_;
};

}  // namespace tessera::nn
