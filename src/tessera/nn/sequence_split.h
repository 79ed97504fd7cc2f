// How a call spreads the tokens of whole documents over the ranks of a ring, where it records
// gradients (ops/attention/ring_attention.h).
#pragma once

#include <cstdint>

#include "tessera/ops/attention/ring_order.h"

namespace tessera::nn {

struct SequenceSplit {
  int64_t ranks = 1;
  ops::RingLayout layout = ops::RingLayout::striped;
};

}  // namespace tessera::nn
