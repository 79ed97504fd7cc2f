// The short causal convolution of a mixer: its weights, its tail in the state, its three paths.
#pragma once

#include "tessera/kernels/activation.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/step_products.h"

namespace tessera::nn {

class CausalConv {
 public:
  /// Weights `name`.weight and, where declared, `name`.bias (causal_conv_decl.h).
  CausalConv(const Builder& builder, const std::string& name, kernels::Activation act);
  /// Its step (decode_step.h): one token x [channels] of a row to y, other memory.
  class Step {
   public:
    Step() = default;
    Step(const CausalConv& conv, StepWeights& weights);
    void operator()(const float* x, float* tail, float* y) const;
    int64_t channels() const { return channels_; }

   private:
    StepNumbers weight_, bias_;
    kernels::Activation act_ = kernels::Activation::identity;
    int64_t channels_ = 0, taps_ = 0;
  };

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
