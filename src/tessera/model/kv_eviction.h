// KV cache eviction: limits the cached tokens with an attention pattern. Torch-free.
#pragma once

#include "tessera/model/model_spec.h"

namespace tessera::model {

/// The resolved spec with full attention limited to the `first` tokens of a text and the `last`
/// ones (pattern sink_window, StreamingLLM; window if first is 0); with `heavy`, to the last ones
/// and that many heavy hitters per key-value head (H2O, nn/mixer/attention/heavy_hitters.h),
/// whatever `first` is. Layers that are limited already or have states of fixed size do not change;
/// neither do parameters. Throws Error(usage) if a layer still keeps every token, if no layer
/// changes, and for models that are no causal decoders.
spec::Json with_kv_eviction(const ModelSpec& spec, int64_t first, int64_t last, int64_t heavy = 0);

}  // namespace tessera::model
