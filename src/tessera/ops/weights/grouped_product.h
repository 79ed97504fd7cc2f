// Several products at once, without a graph: those of experts, which are too small to be shared out
// among threads one by one. float32 on a CPU.
#pragma once

#include <vector>

#include "tessera/ops/weights/product.h"

namespace tessera::ops {

struct ProductInto {
  Tensor out, a, b;
};

/// out_MN = a_MK b_KN of each. Bits depend neither on the number of threads nor on what else is
/// computed with them.
void multiply_each(const std::vector<ProductInto>& products,
                   ProductType type = ProductType::float32);

}  // namespace tessera::ops
