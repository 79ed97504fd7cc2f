// Tensors to and from safetensors files.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tessera/format/tensor_view.h"
#include "tessera/ops/tensor.h"

namespace tessera::infer {

/// A copy of the named tensor, or an undefined one when the file has none.
Tensor tensor_or_undefined(const format::TensorFile& file, const std::string& name);

/// Writes tensors, floating-point types as float32.
void write_tensors(const std::filesystem::path& path,
                   const std::vector<std::pair<std::string, Tensor>>& tensors,
                   const format::StringMap& metadata = {});

}  // namespace tessera::infer
