// Parameters that act on every row alike: factors and offsets of channels. Their gradients are sums
// over the rows, which libtorch forms in an order that turns on the number of threads.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// w [C], or one number of any shape, for every row of x [.., C], to multiply or add: it broadcasts
/// to x and takes no memory of its own. In float32 on a CPU its gradient is summed in an order that
/// follows from the shapes alone (weights/product.h).
Tensor over_rows(const Tensor& w, const Tensor& x);

/// The sum over all rows of x [.., C] -> [C] in that order, without a graph.
Tensor sum_of_rows(const Tensor& x);

}  // namespace tessera::ops
