// Checkpoints as Meta publishes them: params.json with consolidated.00.pth, consolidated.01.pth,
// ..., each file with a part of every matrix (model parallel ranks).
#pragma once

#include <filesystem>

#include "tessera/format/tensor_view.h"
#include "tessera/spec/json.h"

namespace tessera::convert {

struct ParamsFolder {
  spec::Json config;  // params.json
  std::string file;   // its path
  format::TensorFile tensors;
};

/// Whether a folder is one of these.
bool holds_params(const std::filesystem::path& folder);

/// Matrices that several files share are joined: by rows where a part has all `dim` columns, else
/// by columns. Vectors are the same in each. Throws Error(file) for a file that is missing among
/// the numbers, names that differ between files, or parts that fit in two ways.
ParamsFolder read_params_folder(const std::filesystem::path& folder);

}  // namespace tessera::convert
