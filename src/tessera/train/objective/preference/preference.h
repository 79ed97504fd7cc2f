// The objective "preference" (preference_loss.h) on a model: log-probabilities of answers, those of
// the model that the run begins from, computed once and kept, and gradients through both answers of
// a pair. Nothing is dropped, neither here nor there.
#pragma once

#include "tessera/train/objective/objective.h"
#include "tessera/train/objective/preference/preference_source.h"

namespace tessera::train {

/// Sum of ln p over the targets of each piece, in double. With gradients recorded or not, the
/// products are those of training, so that a model compared with itself gives the same numbers.
std::vector<double> answer_log_p(const model::Model& model,
                                 const PackedBatch& packed,
                                 Precision precision);

/// Throws Error(cancelled) between passes of the model that the run begins from.
std::unique_ptr<Objective> preference(const Recipe& recipe,
                                      std::unique_ptr<Dataset> source,
                                      const ObjectiveOptions& options);

}  // namespace tessera::train
