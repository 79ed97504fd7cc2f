// What the tensors of an op of libtessera_ops.so must be. The kernels trust sizes; here Python's
// are checked.
#pragma once

#include <span>
#include <vector>

#include "tessera/ops/tensor.h"

namespace tessera::ops::library {

/// A tensor: its name, and its sizes by name, as in "B,T,H" or "H or B,T,H".
struct Argument {
  const char* name;
  const char* sizes;
};

/// The op's integer, and the least that it may be.
struct Integer {
  const char* name;
  int64_t least;
};

/// What an op is called with.
struct Signature {
  const char* op;
  std::span<const Argument> arguments;
  Integer integer;
};

/// Every tensor holds floating-point numbers and has as many sizes as one of its forms; sizes of
/// one name are equal; G divides H. Otherwise a ValueError: [op] argument: found; expected.
void check_call(const Signature& signature, const std::vector<Tensor>& tensors, int64_t n);

/// The gradient is shaped as the op's result.
void check_gradient(const Signature& signature, const Tensor& gradient, const Tensor& like);

}  // namespace tessera::ops::library
