// Counter-based random tensors (base/rng.h): the value of an element depends on the key and its
// index alone.
#pragma once

#include "tessera/base/rng.h"
#include "tessera/ops/tensor.h"
#include "tessera/spec/mechanism.h"

namespace tessera::ops {

/// x with each element zeroed with probability p and the others scaled by 1 / (1 - p).
Tensor dropout(const Tensor& x, double p, const RandomKey& key);

/// Initial values of a parameter, drawn in double from the stream of `key` and its name.
Tensor initial_values(const spec::ParamDecl& decl, const RandomKey& key, at::ScalarType type);

}  // namespace tessera::ops
