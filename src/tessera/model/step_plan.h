// Decoding steps: calls of few tokens use the steps that parts offer (nn/decode_step.h). Runs of
// neighbouring layers have no tensors between them and one parallel region each. Layers with a part
// without a step, or with a step that does not support the call, use the tensor path
// (Stack::forward), which is also the reference of tests: results are bit-identical. There a part
// still runs by its own step, in one parallel region, where it has one.
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
    std::optional<size_t> state;  // index of its branch in a state, if it has one
  };
  struct Group {
    std::shared_ptr<const nn::ResidualStep> residual;
    std::vector<Part> parts;
  };
  /// Empty unless all of its parts offer steps.
  using Layer = std::vector<Group>;

  StepPlan() = default;
  StepPlan(int64_t d_model, std::vector<Layer> layers) : d_(d_model), layers_(std::move(layers)) {}

  /// True if all parts of a layer offer steps.
  bool offers(size_t layer) const { return !layers_[layer].empty(); }
  /// Number of layers of [first, last), from `first` on, that support this call.
  size_t taken(const Tensor& x_ND, nn::Context& context, size_t first, size_t last) const;
  /// The same, and replaces x_ND by their output. Advances their states.
  size_t run(Tensor& x_ND, nn::Context& context, size_t first, size_t last) const;

  /// x_ND -> [N, width] by the step of one part; undefined where it does not support the call.
  static Tensor run_part(const Part& part, const Tensor& x_ND, int64_t width, nn::Context& context);

 private:
  struct Call;
  Call begun(const Tensor& x_ND, nn::Context& context, size_t first, size_t last) const;

  int64_t d_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace tessera::model
