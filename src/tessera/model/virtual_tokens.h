// What tokens before those of a document need of a spec (Model::virtual_tokens). Torch-free.
#pragma once

#include "tessera/model/model_spec.h"

namespace tessera::model {

/// "" where documents may begin with virtual tokens, else why not; where `layers`, with keys and
/// values of their own in the layers.
std::string no_virtual_reason(const ModelSpec& spec, bool layers);

/// The names of the projections of keys and values of every layer that makes its own, keys first.
std::vector<std::string> key_value_weights(const ModelSpec& spec);

}  // namespace tessera::model
