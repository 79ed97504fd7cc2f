// Sums in training whose bits do not depend on the number of threads, forward and backward.
// libtorch cuts the sum of more than 2^15 numbers by the threads that it has: the sum of all
// numbers always, and sums over some dimensions where the last dimension stays (1,025 x 100 over
// the rows with 1 and with 16 threads). Autograd makes such sums itself for whatever was
// broadcast, expanded or repeated. Here sums are cut into halves of the longest dimension until a
// part is small, which follows from the shape alone. CPU, any floating type; libtorch's sum on
// other devices.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// x.sum(dims, keepdim), with gradients. dims count from the front, or below 0 from the back.
Tensor ordered_sum(const Tensor& x, at::IntArrayRef dims, bool keepdim = false);
/// The sum of all numbers, a tensor of no dimensions.
Tensor ordered_sum(const Tensor& x);
/// The mean over all numbers, or over `dims`.
Tensor ordered_mean(const Tensor& x);
Tensor ordered_mean(const Tensor& x, at::IntArrayRef dims, bool keepdim = false);

/// x broadcast to `sizes` without memory of its own, to be a factor or a term of something so
/// large; its gradient is an ordered sum. x itself where it has that size or no gradient.
Tensor spread(const Tensor& x, at::IntArrayRef sizes);
/// The same to the size of `like` (or what both broadcast to).
Tensor spread(const Tensor& x, const Tensor& like);

/// x.expand(sizes), with such a gradient.
inline Tensor expanded(const Tensor& x, at::IntArrayRef sizes) {
  return spread(x, sizes).expand(sizes);
}

/// x.repeat_interleave(times, dim), with such a gradient: rows of groups for their heads.
Tensor repeat_each(const Tensor& x, int64_t times, int64_t dim);

}  // namespace tessera::ops
