// The tensors of any file or folder that tessera reads, under their own names: nothing is
// interpreted.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/format/tensor_view.h"

namespace tessera::convert {

/// Of a folder: its weights (format::open_tensor_folder), those of Meta's consolidated files, or
/// those of an adapter; of a run's folder those of its checkpoint. Of a file: GGUF, safetensors,
/// torch.save, llama2.c or rwkv.cpp, detected by content. Throws Error(file) for anything else.
format::TensorFile open_container(const std::filesystem::path& path,
                                  std::vector<std::string>* notes = nullptr);

}  // namespace tessera::convert
