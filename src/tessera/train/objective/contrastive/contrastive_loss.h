// InfoNCE: a text's vector against those of all that a batch has, of which one belongs to it.
//   S_ic = cos(a_i, c) / tau over the columns c: all positives, then all negatives
//   loss_i = ln sum_c exp S_ic - S_ii, or the mean of that and of the same over the texts for p_i
// van den Oord et al. 2018, arXiv:1807.03748, eq. 4; Gao et al. 2021 (SimCSE), arXiv:2104.08821,
// eq. 1, 4, 5, which add a weight w to the logit of a text's own negatives. Columns that say what
// the text or its positive says, or are the positive of an equal text, are no negatives, and left
// out. With shorter prefixes of all vectors: Kusupati et al. 2022 (Matryoshka), arXiv:2205.13147.
#pragma once

#include <vector>

#include "tessera/ops/tensor.h"
#include "tessera/train/data/packing.h"
#include "tessera/train/objective/contrastive/contrastive_recipe.h"

namespace tessera::train {

/// Which pieces of some batches together are texts, positives and negatives.
struct ContrastLayout {
  std::vector<int64_t> texts, positives;  // of each sample, its piece
  std::vector<int64_t> negatives, owner;  // of all samples; owner: whose
  std::vector<int64_t> items;             // of all pieces, the number of its text

  /// Adds the samples of a batch behind those that are there.
  void add(const PackedBatch& packed);
  int64_t samples() const { return std::ssize(texts); }
};

struct ContrastLosses {
  Tensor loss_B;                 // of each sample, double, with gradients
  std::vector<int64_t> ahead_B;  // columns, but for its own, that are as near or nearer
};

/// Of vectors of pieces [N, D] that are not normalised yet.
ContrastLosses contrast(const Tensor& vectors_ND,
                        const ContrastLayout& layout,
                        const ContrastiveRecipe& how);

/// Where each sample's own positive stands among all columns, from 1; equal ones count before it.
/// `dims` channels of the vectors, 0 = all.
std::vector<int64_t> ranks(const Tensor& vectors_ND, const ContrastLayout& layout, int64_t dims);

}  // namespace tessera::train
