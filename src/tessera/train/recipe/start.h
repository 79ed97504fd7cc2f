// The initial model of a run, on disk. Torch-free.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/convert/checkpoint.h"

namespace tessera::train {

struct InitRecipe;
/// The initial model of a recipe.
convert::Checkpoint load_start(const InitRecipe& init);
/// Any model in a recipe; its config is read without these keys.
convert::Checkpoint load_without_keys(const std::string& from,
                                      const std::vector<std::string>& ignore_keys);

/// The initial model of the run of a checkpoint; "" if it is no run's, or had none.
std::string start_of_run(const std::filesystem::path& model);

/// A model's tokenizer as recipes name it: "bytes", or a path. Throws Error(spec) if it has no file
/// of its own.
std::string tokenizer_of_start(const std::filesystem::path& from);

}  // namespace tessera::train
