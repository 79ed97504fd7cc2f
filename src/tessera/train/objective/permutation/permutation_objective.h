// The objective "permutation": some tokens of a text one after another, in an order that is drawn
// anew for every sample, each from the tokens before it in that order and from all others that are
// not asked for. Torch-free.
//
// A text is followed by queries, one for each token that is asked for: the mask, at that token's
// place (nn/token_order.h). Tokens that are not asked for are given together, at the beginning.
// Yang et al. 2019 (XLNet), arXiv:1906.08237, sec. 2.2 and 2.3.
#pragma once

#include "tessera/train/data/packing.h"
#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

ObjectiveKind permutation_kind();

/// Texts, the tokens of `batch` with those that are asked for as its targets, with a query for each
/// of these behind their document. `ranks`: of every token 0 or, of those that are asked for, its
/// number in the order, from 1.
PackedBatch with_queries(const PackedBatch& batch,
                         const std::vector<int64_t>& ranks,
                         int64_t mask_id);

}  // namespace tessera::train
