// Products in training whose bits do not turn on the number of threads. libtorch's do for some
// shapes (7 x 64 by 64 x 64 with 1 and with 2 threads): its library cuts them by the threads that
// it has. Here float32 on a CPU is cut into blocks that follow from the shapes alone, of which one
// thread computes each, by libtorch or, where that is faster, by kernels::gemm, forward and
// backward; other types and devices take libtorch's.
#pragma once

#include <string_view>

#include "tessera/ops/tensor.h"
#include "tessera/ops/weights/product_settings.h"

namespace tessera::ops {

/// a [.., M, K] b [.., K, N] -> [.., M, N], with gradients; leading dimensions broadcast.
Tensor product(const Tensor& a, const Tensor& b);

/// at::einsum of two tensors, with gradients: "bik,bjk->bij". Letters alone, each once in a tensor;
/// one that the result has not is in both.
Tensor einsum(std::string_view equation, const Tensor& a, const Tensor& b);

/// product() of the tokens' rows a [.., M, K] and b_KN whose factors are rounded to a type, in the
/// gradients too; float32 on a CPU.
Tensor rounded_product(const Tensor& a, const Tensor& b_KN, ProductType type);

/// x_NI w_OI^T for a leaf w, as described at ProductSettings::gradients_in_place.
Tensor product_in_place(const Tensor& x_NI, const Tensor& w_OI, ProductType type);

/// out_MN = a_MK b_KN, or out_MN += it, without a graph; float32 on a CPU.
void multiply_into(const Tensor& out,
                   const Tensor& a,
                   const Tensor& b,
                   bool add = false,
                   ProductType type = ProductType::float32);

}  // namespace tessera::ops
