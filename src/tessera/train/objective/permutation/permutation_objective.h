// The objective "permutation" (XLNet): predicts some tokens of a text in a random order, drawn for
// every sample, each from the tokens before it in that order and from all tokens that are no
// targets. Torch-free.
//
// A text is followed by queries, one for each target: the mask, at the target's position
// (nn/token_order.h). Tokens that are no targets come first in the order. Yang et al. 2019 (XLNet),
// arXiv:1906.08237, sec. 2.2 and 2.3.
#pragma once

#include "tessera/train/data/packing.h"
#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

std::vector<ObjectiveKind> permutation_kinds();

/// The texts of `batch`, followed by a query for each target after its document. `ranks`: of every
/// token 0, or for targets their number in the order, from 1.
PackedBatch with_queries(const PackedBatch& batch,
                         const std::vector<int64_t>& ranks,
                         int64_t mask_id);

}  // namespace tessera::train
