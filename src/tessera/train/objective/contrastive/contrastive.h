// The objective "contrastive" (contrastive_loss.h) on a model: text vectors and gradients through
// them. An update of several micro-batches is one large batch (GradCache): all vectors are computed
// without gradients, the loss gives the gradients of the vectors, and each micro-batch is computed
// again with the same dropout for its backward pass (Gao et al. 2021, arXiv:2101.06983).
#pragma once

#include "tessera/train/objective/contrastive/contrastive_recipe.h"
#include "tessera/train/objective/objective.h"

namespace tessera::train {

/// The vector of each document, [documents, D], from the hidden states of a batch.
Tensor text_vectors(const model::Model& model,
                    const Tensor& hidden_ND,
                    const nn::Batch& batch,
                    TextVector pooling,
                    const ops::ProductSettings& products = {});

std::unique_ptr<Objective> contrastive(const ModelPlan& plan,
                                       const ObjectivePtr& objective,
                                       std::unique_ptr<Dataset> source,
                                       const ObjectiveOptions& options);

}  // namespace tessera::train
