// The lower bound of one layer's forget gates, as lower_bounds.h declares it.
#pragma once

#include "tessera/nn/mixer/linear/lower_bounds.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/softmax.h"

namespace tessera::nn {

class LowerBoundTable {
 public:
  LowerBoundTable(LowerBound bound, const char* id, int64_t channels, const Builder& builder)
      : bound_(bound),
        channels_(channels),
        layer_(builder.scope().layer),
        layers_(builder.scope().n_layers),
        table_(builder.shared(id).optional("lower_bounds")) {}

  /// [channels] in like's type and place, undefined where it is 0.
  Tensor operator()(const Tensor& like) const {
    if (bound_ == LowerBound::none || layer_ == 0) return {};
    if (bound_ == LowerBound::linear)
      return at::full({channels_}, static_cast<double>(layer_) / static_cast<double>(layers_),
                      like.options().requires_grad(false));
    const Tensor shares_CL = ops::softmax(table_->tensor().to(like.options()).t());
    return shares_CL.narrow(1, 1, layer_).sum(1);
  }

 private:
  LowerBound bound_;
  int64_t channels_, layer_, layers_;
  WeightPtr table_;
};

}  // namespace tessera::nn
