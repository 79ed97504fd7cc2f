// Calls of few tokens, as decoding makes them, by the steps that parts offer (nn/decode_step.h):
// runs of neighbouring layers without tensors between them, in one parallel region each. Layers of
// which a part offers no step, or a step that does not take the call, go the tensor path
// (Stack::forward), which also is what steps are tested against: the numbers are the same, bit by
// bit.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tessera/nn/decode_step.h"

namespace tessera::model {

class StepPlan {
 public:
  struct Part {
    std::shared_ptr<const nn::PartStep> step;
    std::optional<size_t> state;  // index of its branch in a state, where it has one
  };
  struct Group {
    std::shared_ptr<const nn::ResidualStep> residual;
    std::vector<Part> parts;
  };
  /// Empty where not all of its parts offer steps.
  using Layer = std::vector<Group>;

  StepPlan() = default;
  StepPlan(int64_t d_model, std::vector<Layer> layers) : d_(d_model), layers_(std::move(layers)) {}

  /// Whether all parts of a layer offer steps.
  bool offers(size_t layer) const { return !layers_[layer].empty(); }
  /// How many layers of [first, last) from `first` on take this call.
  size_t taken(const Tensor& x_ND, nn::Context& context, size_t first, size_t last) const;
  /// The same, and replaces x_ND by what they make of it. Their states move on.
  size_t run(Tensor& x_ND, nn::Context& context, size_t first, size_t last) const;

  /// For tests: while one lives on a thread, no layer takes a call there.
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
  struct Call;
  bool serves(const Tensor& x_ND, const nn::Context& context) const;
  Call begun(const Tensor& x_ND, nn::Context& context, size_t first, size_t last) const;

  int64_t d_ = 0;
  std::vector<Layer> layers_;
  inline static thread_local bool off_ = false;
};

}  // namespace tessera::model
