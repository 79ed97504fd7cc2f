// Requirements of virtual tokens (Model::virtual_tokens) on a spec. Torch-free.
#pragma once

#include "tessera/model/model_spec.h"

namespace tessera::model {

/// "" if documents may begin with virtual tokens, otherwise the reason; `layers`: with keys and
/// values of their own in the layers.
std::string no_virtual_reason(const ModelSpec& spec, bool layers);

/// The key and value projections of every layer with its own, keys first.
std::vector<std::string> key_value_weights(const ModelSpec& spec);

}  // namespace tessera::model
