// Products in training whose bits do not turn on the number of threads. libtorch's do for some
// shapes (7 x 64 by 64 x 64 with 1 and with 2 threads): its library cuts them by the threads that
// it has. Here float32 on a CPU is cut into blocks that follow from the shapes alone, of which one
// thread computes each, forward and backward; other types and devices take libtorch's.
#pragma once

#include <string_view>

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// a [.., M, K] b [.., K, N] -> [.., M, N], with gradients; leading dimensions broadcast.
Tensor product(const Tensor& a, const Tensor& b);

/// at::einsum of two tensors, with gradients: "bik,bjk->bij". Letters alone, each once in a tensor;
/// one that the result has not stands in both.
Tensor einsum(std::string_view equation, const Tensor& a, const Tensor& b);

/// out_MN = a_MK b_KN, or out_MN += it, without a graph; float32 on a CPU.
void multiply_into(const Tensor& out, const Tensor& a, const Tensor& b, bool add = false);

}  // namespace tessera::ops
