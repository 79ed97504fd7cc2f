// Targets of multi-token prediction (model/predictor_spec.h): predictor k, from 0, at token t of a
// document predicts the target at t + k + 1, whose input id it may read.
#pragma once

#include "tessera/nn/batch.h"
#include "tessera/train/data/packing.h"

namespace tessera::train {

struct MtpBatch {
  nn::Batch batch;               // its tokens; ids are those k + 1 positions later if it reads them
  std::vector<int64_t> tokens;   // their positions in the packed batch
  std::vector<int64_t> targets;  // -1: none
  int64_t n_targets = 0;
};

/// For predictor `index`, which reads those ids or not; `batch` is the whole one. The last index +
/// 1 tokens of every document are left out.
MtpBatch ahead_of(const PackedBatch& packed, const nn::Batch& batch, int64_t index, bool reads_ids);
/// Its number of targets only.
int64_t targets_ahead(const PackedBatch& packed, int64_t index);
/// The name of its loss: "predictor_1".
std::string ahead_loss(int64_t index);

}  // namespace tessera::train
