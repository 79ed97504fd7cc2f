// InfoNCE: the vector of a text against those of the whole batch, one of which is its positive.
//   S_ic = cos(a_i, c) / tau over the columns c: all positives, then all negatives
//   loss_i = ln sum_c exp S_ic - S_ii, or the mean of that and of the same over the texts for p_i
// van den Oord et al. 2018, arXiv:1807.03748, eq. 4; Gao et al. 2021 (SimCSE), arXiv:2104.08821,
// eq. 1, 4, 5, which add a weight w to the logit of a text's own negatives. Columns that equal the
// text or its positive, or are the positive of an equal text, are not used as negatives. With
// shorter prefixes of all vectors: Kusupati et al. 2022 (Matryoshka), arXiv:2205.13147.
#pragma once

#include <vector>

#include "tessera/ops/tensor.h"
#include "tessera/train/data/packing.h"
#include "tessera/train/objective/contrastive/contrastive_recipe.h"

namespace tessera::train {

/// Which documents of some batches are texts, positives and negatives.
struct ContrastLayout {
  std::vector<int64_t> texts, positives;  // document of each sample
  std::vector<int64_t> negatives, owner;  // of all samples; owner: sample of each negative
  std::vector<int64_t> items;             // text number of every document

  /// Appends the samples of a batch.
  void add(const PackedBatch& packed);
  int64_t samples() const { return std::ssize(texts); }
};

struct ContrastLosses {
  Tensor loss_B;   // of each sample, double, with gradients
  Tensor ahead_B;  // int64: number of other columns that are as near or nearer
};

/// From document vectors [N, D] that are not normalized; the results are on their device.
ContrastLosses contrast(const Tensor& vectors_ND,
                        const ContrastLayout& layout,
                        const ContrastiveRecipe& how);

/// Rank of each sample's positive among all columns, from 1; ties count before it. `dims` channels
/// of the vectors, 0 = all.
std::vector<int64_t> ranks(const Tensor& vectors_ND, const ContrastLayout& layout, int64_t dims);

}  // namespace tessera::train
