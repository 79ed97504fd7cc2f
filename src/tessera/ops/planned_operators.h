// Operators of libtorch on the meta device, for plans of memory (planned_memory.h).
#pragma once

#include "tessera/ops/tensor.h"

namespace tessera::ops {

/// Registers the shapes of operators that libtorch lacks there; once per process.
void add_planned_operators();

}  // namespace tessera::ops
