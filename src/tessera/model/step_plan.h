// A call of few tokens, as decoding makes them, without tensors between the layers' first input and
// their last output: what tensors cost (allocation, views, dispatch, a parallel region for each
// product) is a third of such a call of a small model. One parallel region goes through all layers;
// products share out their columns, attention its heads and blocks of keys.
//
// It knows the parts that most decoders are made of, and of each the options that it serves:
// attention with rope or without positions, seeing all or a window; glu and mlp; rms_norm and
// layer_norm; residuals pre_norm and sandwich. For any other part, or option at another value than
// its default, the layers run as their parts do (Stack::forward), which
// also is what this is tested against: the numbers are the same, bit by bit, as they come from the
// same kernels in the same order.
#pragma once

#include <memory>

#include "tessera/model/model_spec.h"
#include "tessera/nn/parts.h"

namespace tessera::model {

class StepPlan {
 public:
  /// Of the layers of `spec`, which must outlive it; null where some part is none of those that it
  /// knows. `root` finds the weights.
  static std::shared_ptr<const StepPlan> of(const ModelSpec& spec, const nn::Builder& root);
  virtual ~StepPlan() = default;

  /// Whether it takes this call: few tokens that continue a state, without gradients, and nobody
  /// looks on.
  virtual bool serves(const Tensor& x_ND, nn::Context& context) const = 0;
  /// What the first `layers` layers make of x_ND. Their states move on.
  virtual Tensor run(const Tensor& x_ND, nn::Context& context, int64_t layers) const = 0;

  /// For tests: while one lives on a thread, serves() says no there.
  class Off {
   public:
    Off() : before_(off_) { off_ = true; }
    ~Off() { off_ = before_; }
    Off(const Off&) = delete;
    Off& operator=(const Off&) = delete;

   private:
    bool before_;
  };
  static bool off() { return off_; }

 private:
  inline static thread_local bool off_ = false;
};

}  // namespace tessera::model
