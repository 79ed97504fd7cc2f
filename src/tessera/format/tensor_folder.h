// The weights of a model, in whichever container they lie: safetensors or torch.save, one file or
// shards with an index.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/format/tensor_view.h"

namespace tessera::format {

/// A model folder, read as transformers reads it: model.safetensors, else every tensor of the
/// shards that model.safetensors.index.json names, else pytorch_model.bin, else the shards of
/// pytorch_model.bin.index.json. Rules and notes are those of open_safetensors_folder().
TensorFile open_tensor_folder(const std::filesystem::path& folder,
                              std::vector<std::string>* notes = nullptr);

/// Whether a folder holds one of these four files.
bool holds_tensor_files(const std::filesystem::path& folder);

/// One file of tensors, identified by its first bytes, whatever its name.
TensorFile open_tensor_file(const std::filesystem::path& path,
                            std::vector<std::string>* notes = nullptr);

/// Whether a file begins as safetensors do: a length, then a JSON header.
bool begins_as_safetensors(std::string_view text);

}  // namespace tessera::format
