// The model that a run begins from, on disk. Torch-free.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::train {

/// What convert::load_checkpoint reads for `from`: of a run's folder its newest checkpoint.
std::filesystem::path start_of(const std::filesystem::path& from);

/// How a recipe names that model's tokenizer: "bytes", or a path. Throws Error(spec) where it lies
/// in no file of its own.
std::string tokenizer_of_start(const std::filesystem::path& model);

}  // namespace tessera::train
