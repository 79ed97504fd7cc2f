// Quantizes weights while loading a model.
#pragma once

#include "tessera/infer/loading/load_model.h"

namespace tessera::infer {

/// Storage and arithmetic of weights where no gradient is recorded.
struct MatmulOptions {
  kernels::Arithmetic arithmetic =
      kernels::Arithmetic::float32;  // of products with quantized weights
  /// Quantize float matrices of products to this block type; lookup tables stay as stored.
  std::optional<DType> blocks = {};
};

/// load_model() with these options. Throws Error(usage) if no matrix can be quantized to `blocks`.
LoadedModel load_model(const std::filesystem::path& path,
                       const convert::LoadOptions& options,
                       const std::vector<std::string>& adapters,
                       const MatmulOptions& products);

}  // namespace tessera::infer
