// The objective "contrastive" (contrastive_loss.h) on a model: the vectors of texts, and gradients
// through them. An update of several batches is one large batch: all are read first without keeping
// anything, the loss gives the gradients of their vectors, and each batch is read again, with the
// same dropout, to take its own back (Gao et al. 2021, GradCache, arXiv:2101.06983).
#pragma once

#include "tessera/train/objective/contrastive/contrastive_recipe.h"
#include "tessera/train/objective/objective.h"

namespace tessera::train {

/// The vector of each piece, [pieces, D], of the hidden states of a batch.
Tensor text_vectors(const model::Model& model,
                    const Tensor& hidden_ND,
                    const nn::Batch& batch,
                    TextVector pooling);

std::unique_ptr<Objective> contrastive(const Recipe& recipe,
                                       std::unique_ptr<Dataset> source,
                                       const ObjectiveOptions& options);

}  // namespace tessera::train
