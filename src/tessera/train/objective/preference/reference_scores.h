// What the model that a run begins from says of its pairs, computed once and kept in the run's
// cache: a file for each model and data, by their hashes. Pairs are scored in fixed groups of
// neighbours, so that a pair's number does not turn on which others were asked for.
#pragma once

#include "tessera/train/objective/objective.h"
#include "tessera/train/objective/preference/preference_source.h"

namespace tessera::train {

/// ln p of the chosen answer and of the rejected one.
using PairScore = std::array<double, 2>;

/// By the number of the pair; NaN for those that the run never sees. A run that goes on takes what
/// it began with from the cache; where that is gone the model is asked again.
std::vector<PairScore> reference_scores(const Recipe& recipe,
                                        const PreferenceSource& source,
                                        const ObjectiveOptions& options);

}  // namespace tessera::train
