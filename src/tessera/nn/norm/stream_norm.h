// RMSNorm of the streams of a token, each alone, with weights of its own.
#pragma once

#include "tessera/kernels/basic/rowwise.h"
#include "tessera/nn/norm/norm_weight.h"
#include "tessera/nn/parts.h"
#include "tessera/nn/step_products.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {

/// StreamNorm of rows in memory (decode_step.h).
struct StreamNormStep {
  StepNumbers weight;
  float offset, eps;
  /// One token's streams of `width` channels, on this thread; y may be x.
  void operator()(const float* x, int64_t streams, int64_t width, float* y) const {
    kernels::rms_norm(x, streams, width, nullptr, 0, eps, y);
    const float* w = weight.data();
    for (int64_t j = 0; w != nullptr && j < streams * width; ++j) {
      const float factor = offset == 0 ? w[j] : w[j] + offset;
      y[j] *= factor;
    }
  }
};

class StreamNorm {
 public:
  StreamNorm(const Builder& builder, const std::string& name, NormWeight how, double eps)
      : weight_(builder.optional(name + ".weight")),
        offset_(how == NormWeight::plus_one ? 1 : 0),
        eps_(eps) {}

  /// x_NSD: S streams of D channels.
  Tensor operator()(const Tensor& x_NSD) const {
    const int64_t s = x_NSD.size(1), d = x_NSD.size(2);
    const Tensor n_NSD =
        ops::rms_norm(x_NSD.reshape({-1, d}), Tensor(), 0, eps_).reshape(x_NSD.sizes());
    if (!weight_) return n_NSD;
    const Tensor w_SD = weight_->tensor().to(n_NSD.device(), n_NSD.scalar_type()).reshape({s, d});
    return n_NSD * ops::spread(offset_ == 0 ? w_SD : w_SD + offset_, n_NSD);
  }
  StreamNormStep step(StepWeights& weights) const {
    return {weights.numbers(weight_), static_cast<float>(offset_), static_cast<float>(eps_)};
  }

 private:
  WeightPtr weight_;
  double offset_, eps_;
};

}  // namespace tessera::nn
