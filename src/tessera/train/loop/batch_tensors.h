// Converts packed samples to model inputs.
#pragma once

#include "tessera/model/model.h"
#include "tessera/train/data/packing.h"

namespace tessera::train {

/// Every packed document is a segment, with the random numbers of its sample.
nn::Batch batch_of(const PackedBatch& packed);
/// Encoder inputs: source r for row r.
nn::Batch sources_of(const PackedBatch& packed);
/// [N], -1: no target.
Tensor targets_of(const PackedBatch& packed);

/// The values of a tensor, in order.
std::vector<double> doubles_of(const Tensor& values);

/// Hidden states [N, D] of a packed batch; sources are encoded first. `encoded` receives the
/// encoder output.
Tensor hidden_of(const model::Model& model,
                 const PackedBatch& packed,
                 const nn::Batch& batch,
                 model::ForwardOptions options,
                 nn::Encoded* encoded = nullptr);

}  // namespace tessera::train
