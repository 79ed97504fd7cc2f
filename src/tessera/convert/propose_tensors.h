// Tensors of a file for parameters of a draft: by names, shapes and roles. What has another name is
// a rename; what is packed, turned over, or given by no rule of the base is a rule of the draft.
// Torch-free.
#pragma once

#include "tessera/convert/propose_trial.h"

namespace tessera::convert {

/// Maps what the base's rules leave over. Whether anything was mapped.
bool map_tensors(Trial& trial, Draft& draft);

/// Adds a rule for parameters of the layers with these numbers ({} = outside of layers) to a draft
/// of a model of n_layers. Names are those of tessera with the number of one layer, and the file's
/// pattern.
void add_rule(Draft& draft,
              int64_t n_layers,
              const std::vector<int64_t>& numbers,
              const std::vector<std::string>& ours,
              const std::string& file,
              Json steps);

}  // namespace tessera::convert
