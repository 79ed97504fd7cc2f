// Samples as a model reads them.
#pragma once

#include "tessera/model/model.h"
#include "tessera/train/data/packing.h"

namespace tessera::train {

/// Every piece a segment of its own, which draws its sample's random numbers.
nn::Batch batch_of(const PackedBatch& packed);
/// What an encoder reads: source r for row r.
nn::Batch sources_of(const PackedBatch& packed);
/// [N], -1: none.
Tensor targets_of(const PackedBatch& packed);

/// The numbers of a tensor, in order.
std::vector<double> doubles_of(const Tensor& values);

/// Hidden states of a packed batch, its sources read first where it has some; `encoded` takes what
/// became of these.
Tensor hidden_of(const model::Model& model,
                 const PackedBatch& packed,
                 const nn::Batch& batch,
                 model::ForwardOptions options,
                 nn::Encoded* encoded = nullptr);

}  // namespace tessera::train
