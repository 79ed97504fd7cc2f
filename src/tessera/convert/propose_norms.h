// The norms of a model by its tensors: their kind, their places in a layer, norms of queries and
// keys, weights of (1 + w). Torch-free.
#pragma once

#include "tessera/convert/propose_trial.h"

namespace tessera::convert {

/// Gives a draft the norms that names, shapes and weights show, where its base has values for them.
void adapt_norms(Trial& trial, Draft& draft);

}  // namespace tessera::convert
