// Branches of draft tokens in one segment: pending tokens in pre-order, whose positions define the
// branch of each. A token whose position does not follow that of the one before it begins
// another branch, after the last token before it that is one position earlier (or after what
// the row holds). It sees what the row holds, its ancestors and itself; its branch alone is what it
// would be in a segment of its own.
//
// Served by attention and cross-attention (infer/speculation/drafter.h lists the others):
// recurrent states have one past.
#pragma once

#include <vector>

#include "tessera/nn/batch.h"

namespace tessera::nn {

/// Of each token of the segment, those before it in its branch and itself, numbered in the segment,
/// ascending. Empty where all of them are one chain.
inline std::vector<std::vector<int64_t>> branches_of(const Batch& batch, const Segment& segment) {
  if (!segment.pending || segment.length < 2 || segment.places != nullptr) return {};
  const Tensor positions = batch.positions_N.to(at::kCPU).contiguous();
  const int64_t* at = positions.const_data_ptr<int64_t>() + segment.begin;
  bool chain = true;
  for (int64_t i = 1; i < segment.length; ++i) chain = chain && at[i] > at[i - 1];
  if (chain) return {};
  std::vector<std::vector<int64_t>> ways;
  for (int64_t i = 0; i < segment.length; ++i) {
    int64_t parent = i - 1;
    if (parent >= 0 && at[i] <= at[parent])
      while (parent >= 0 && at[parent] >= at[i]) --parent;
    ways.push_back(parent < 0 ? std::vector<int64_t>() : ways[static_cast<size_t>(parent)]);
    ways.back().push_back(i);
  }
  return ways;
}

}  // namespace tessera::nn
