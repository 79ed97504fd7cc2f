// The algebra of attention over parts of the keys: a result is an output and the log of its sum of
// exponentials; two results over disjoint keys make that of their union. Associative, commutative;
// (0, -inf) changes nothing. Dao et al. 2022, arXiv:2205.14135.
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

struct PartialAttention {
  Tensor out;  // [..., Dv]
  Tensor lse;  // [...]; -inf where no key was seen
};

/// In float32 or double whatever the outputs' type; differentiable in all four.
PartialAttention attention_merge(const PartialAttention& a, const PartialAttention& b);

}  // namespace tessera::ops
