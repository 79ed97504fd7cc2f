// Angles of the tokens of a call, as position "rope" turns them.
#pragma once

#include "tessera/nn/batch.h"
#include "tessera/nn/position/rope.h"
#include "tessera/ops/basic/rope.h"

namespace tessera::nn {

/// Throws Error(input) for a segment that goes on beyond where all angles change.
ops::RotaryTable rope_table(const RopeConfig& config, const Batch& batch, at::ScalarType type);

}  // namespace tessera::nn
