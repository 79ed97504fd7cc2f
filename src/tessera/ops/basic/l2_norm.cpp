#include "tessera/ops/basic/l2_norm.h"

#include <cmath>

#include "tessera/ops/basic/pointwise.h"

namespace tessera::ops {

Tensor l2_norm(const Tensor& x, double eps) {
  // the sum of squares is the width times their mean
  const auto width = static_cast<double>(x.size(-1));
  return rms_norm(x, {}, 0, eps / width) * (1 / std::sqrt(width));
}

}  // namespace tessera::ops
