// Several streams a token as one tensor, H_NSD.
#pragma once

#include "tessera/ops/basic/ordered_sum.h"

namespace tessera::nn {

/// x_ND in each of n streams.
inline Tensor every_stream(const Tensor& x_ND, int64_t n) {
  return ops::expanded(x_ND.unsqueeze(1), {x_ND.size(0), n, x_ND.size(1)});
}

/// sum_s w_NS[:, s] H_NSD[:, s]: [N, D], added in the order of the streams for every token.
inline Tensor weighed_sum(const Tensor& w_NS, const Tensor& h_NSD) {
  Tensor sum;
  for (int64_t s = 0; s < h_NSD.size(1); ++s) {
    const Tensor term = w_NS.select(1, s).unsqueeze(-1) * h_NSD.select(1, s);
    sum = sum.defined() ? sum + term : term;
  }
  return sum;
}

}  // namespace tessera::nn
