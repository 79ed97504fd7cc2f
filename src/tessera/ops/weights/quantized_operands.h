// Rounding of the operands of products (Weight::rounded()): ternary matrices and rows of 8 bits.
//   T(W) = clamp(round(W / a), -1, 1) a,  a = max(mean |W|, 1e-5) of a matrix
//   Q(x) = round(127 x / b) b / 127,      b = max(max |x|, 1e-5) of a row
// Gradients pass both unchanged (straight-through estimator: Bengio et al. 2013, arXiv:1308.3432).
// Ma et al. 2024, arXiv:2402.17764, sec. 2; with transformers' rounding to even.
#pragma once

#include "tessera/ops/weights/weight.h"

namespace tessera::ops {

/// T of each matrix [.., O, I], in its type.
Tensor ternary_matrices(const Tensor& w);
/// Q of each row [.., I], in its type.
Tensor int8_rows(const Tensor& x);

/// w, whose products round their operands. Numbers in blocks are not rounded to ternary ones again:
/// they are as they are. A float matrix that is not trained becomes ternary now, in the smallest
/// type that holds it (kernels::ternary_type()), or stays where it is on another device. Of an
/// adapted weight W alone is rounded, and what it reads. Null stays null.
WeightPtr with_rounding(const WeightPtr& w, OperandRounding rounding);

/// w with the matrix rounded, if it is to be, and nothing else to round.
Weight without_rounding(const Weight& w);

/// Throws Error(usage) where products with w round what they read: for operations that read its
/// numbers in another way.
void check_reads_no_rows(const Weight& w);

}  // namespace tessera::ops
