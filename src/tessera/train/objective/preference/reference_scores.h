// Scores of a run's pairs by the reference model, computed once and cached in the run's folder: one
// file per model and data, by hash. Pairs are scored in fixed groups of neighbours, so that a
// pair's score does not depend on which others are needed.
#pragma once

#include "tessera/train/objective/objective.h"
#include "tessera/train/objective/preference/preference_source.h"

namespace tessera::train {

/// ln p of the chosen and of the rejected answer.
using PairScore = std::array<double, 2>;

/// By pair number; NaN for pairs that the run never sees. Computed on options.device. A resumed run
/// takes its scores from the cache, those of another device too; if they are missing, the model is
/// evaluated again.
std::vector<PairScore> reference_scores(const ModelPlan& plan,
                                        const PreferenceSource& source,
                                        const ObjectiveOptions& options);

}  // namespace tessera::train
