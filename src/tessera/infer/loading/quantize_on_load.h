// A model whose matrices are rounded to blocks as it is loaded.
#pragma once

#include "tessera/infer/loading/load_model.h"

namespace tessera::infer {

/// How a model's weights are held and multiplied where no gradient is recorded.
struct MatmulOptions {
  kernels::Arithmetic arithmetic = kernels::Arithmetic::float32;  // of weights in blocks
  /// Matrices of plain numbers that products read are rounded to this block type; tables that are
  /// looked up alone stay as they lie.
  std::optional<DType> blocks = {};
};

/// load_model() so. Throws Error(usage) where no matrix can be rounded to the blocks asked for.
LoadedModel load_model(const std::filesystem::path& path,
                       const convert::LoadOptions& options,
                       const std::vector<std::string>& adapters,
                       const MatmulOptions& products);

}  // namespace tessera::infer
