// The model that a run begins from, on disk. Torch-free.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/convert/checkpoint.h"

namespace tessera::train {

struct InitRecipe;
/// The model that a recipe begins from.
convert::Checkpoint load_start(const InitRecipe& init);
/// Any model that a recipe names, whose config is read without these keys.
convert::Checkpoint load_without_keys(const std::string& from,
                                      const std::vector<std::string>& ignore_keys);

/// The model that the run of a checkpoint began from; "" where it is no run's, or began from none.
std::string start_of_run(const std::filesystem::path& model);

/// How a recipe names a model's tokenizer: "bytes", or a path. Throws Error(spec) where it lies
/// in no file of its own.
std::string tokenizer_of_start(const std::filesystem::path& from);

}  // namespace tessera::train
