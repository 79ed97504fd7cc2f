// The checkpoint that a run's folder is loaded as. Torch-free.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::convert {

/// Of the folder of a run (tessera train --out) its best checkpoint, where the run keeps one
/// (checkpoint.best), else its newest; any other path as it is. Every verb takes a run's folder as
/// the model this way.
std::filesystem::path checkpoint_place(const std::filesystem::path& path);

/// The folder that a file of weights (safetensors, torch.save) is read with: its own, where that
/// has a config.json; any other path as checkpoint_place() has it.
std::filesystem::path model_folder(const std::filesystem::path& path);

/// A line that names the checkpoint that was taken; "" for a path that is no run's folder.
std::string about_place(const std::filesystem::path& path);

}  // namespace tessera::convert
