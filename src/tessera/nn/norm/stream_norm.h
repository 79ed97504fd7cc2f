// RMSNorm of the streams of a token, each alone, with weights of its own.
#pragma once

#include "tessera/nn/norm/norm_weight.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/basic/ordered_sum.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::nn {

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

 private:
  WeightPtr weight_;
  double offset_, eps_;
};

}  // namespace tessera::nn
