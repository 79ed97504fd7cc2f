// A bound on the tokens whose keys and values a model keeps: eviction as a pattern. Torch-free.
#pragma once

#include "tessera/model/model_spec.h"

namespace tessera::model {

/// The spec, resolved, with attention that sees everything bounded to the `first` tokens of a text
/// and the `last` ones (pattern sink_window; window where first is 0); with `heavy`, to the last
/// ones and so many keys of every key-value head that were given the most weight
/// (nn/mixer/attention/heavy_hitters.h), whatever `first` is. Layers that are bounded already, or
/// keep tensors of fixed size, stay as they are; so do all parameters. Throws Error(usage) where a
/// layer keeps every token all the same, where none does, and for models that are no causal
/// decoders.
spec::Json with_kv_eviction(const ModelSpec& spec, int64_t first, int64_t last, int64_t heavy = 0);

}  // namespace tessera::model
