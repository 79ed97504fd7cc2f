// What the predictors of a spec learn from a packed batch (model/predictor_spec.h): predictor k,
// from 0, at token t of a document predicts what is to be predicted at t + k + 1, whose id it may
// read.
#pragma once

#include "tessera/nn/batch.h"
#include "tessera/train/data/packing.h"

namespace tessera::train {

struct MtpBatch {
  nn::Batch batch;               // its tokens; ids those k + 1 places on where it reads them
  std::vector<int64_t> tokens;   // where they stand in the packed batch
  std::vector<int64_t> targets;  // -1: none
  int64_t n_targets = 0;
};

/// Of predictor `index`, which reads those ids or not; `batch` is the whole one. The last index + 1
/// tokens of every document have no part in it.
MtpBatch ahead_of(const PackedBatch& packed, const nn::Batch& batch, int64_t index, bool reads_ids);
/// Its n_targets alone.
int64_t targets_ahead(const PackedBatch& packed, int64_t index);
/// The name of its loss: "predictor_1".
std::string ahead_loss(int64_t index);

}  // namespace tessera::train
