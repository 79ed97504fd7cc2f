// How a call spreads the tokens of whole documents over the ranks of a ring, where it records
// gradients (ops/attention/ring_attention.h).
#pragma once

#include "tessera/nn/context.h"
#include "tessera/ops/attention/ring_order.h"

namespace tessera::nn {

struct SequenceSplit {
  int64_t ranks = 1;
  ops::RingLayout layout = ops::RingLayout::striped;
};

inline void set_sequence_split(Context& context, const SequenceSplit& split) {
  if (split.ranks > 1) context.shared["sequence split"] = split;
}

inline SequenceSplit sequence_split(const Context& context) {
  const auto found = context.shared.find("sequence split");
  return found == context.shared.end() ? SequenceSplit()
                                       : std::any_cast<SequenceSplit>(found->second);
}

}  // namespace tessera::nn
