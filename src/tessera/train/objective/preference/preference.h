// The objective "preference" (preference_loss.h) on a model: log-probabilities of answers, those of
// the reference model (the run's initial model), computed once and cached, and gradients through
// both answers of a pair. Without dropout in both models.
#pragma once

#include "tessera/train/objective/objective.h"
#include "tessera/train/objective/preference/preference_source.h"

namespace tessera::train {

/// Sum of ln p over the targets of each document, in double. The matrix products are those of
/// training with or without gradients, so that a model compared with itself has equal numbers.
std::vector<double> answer_log_p(const model::Model& model,
                                 const PackedBatch& packed,
                                 Precision precision);

/// Throws Error(cancelled) between passes of the reference model.
std::unique_ptr<Objective> preference(const ModelPlan& plan,
                                      const ObjectivePtr& objective,
                                      std::unique_ptr<Dataset> source,
                                      const ObjectiveOptions& options);

}  // namespace tessera::train
