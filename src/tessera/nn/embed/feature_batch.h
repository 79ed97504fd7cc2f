// Batches of documents that are features.
#pragma once

#include "tessera/nn/batch.h"
#include "tessera/nn/embed/feature_embed.h"
#include "tessera/ops/weights/weight.h"

namespace tessera::nn {

/// A document for each of these features, with as many tokens as the embedding makes of them; ids
/// are 0. Throws Error(input) on features that are no numbers, or of a shape that it cannot read.
Batch feature_batch(const FeatureEmbedConfig& embed, std::vector<Tensor> features);

/// The features of a call, as `like` holds numbers. Throws Error(input) where it brings none.
std::vector<Tensor> features_of(const FeatureEmbedConfig& embed,
                                const Batch& batch,
                                const ops::Weight& like);

}  // namespace tessera::nn
