// How a list of ops becomes ops of libtessera_ops.so: their schemas, their CPU, Meta and Autograd
// kernels, and the ops that are their gradients. Boxed: one kernel of each kind serves all ops, and
// finds by its name what it computes.
#pragma once

#include <torch/library.h>

#include <vector>

#include "tessera/ops/library/shapes.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops::library {

using Tensors = std::vector<Tensor>;

/// Takes its tensors and an integer, and gives a tensor shaped as the argument `like`.
struct Op {
  const char* name;
  std::vector<Argument> arguments;
  Integer integer;
  size_t like;
  Tensor (*compute)(const Tensors&, int64_t);
  Signature signature() const { return {name, arguments, integer}; }
};

/// The ops of the source files.
const std::vector<Op>& scan_ops();
const std::vector<Op>& recurrence_ops();

}  // namespace tessera::ops::library
