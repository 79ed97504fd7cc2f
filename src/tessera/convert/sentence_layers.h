// Modules of sentence-transformers after the pooling: Dense, LayerNorm. Torch-free.
#pragma once

#include <filesystem>

#include "tessera/convert/sentence_modules.h"

namespace tessera::convert {

/// `folder` holds config.json and model.safetensors. Throws Error(file) on activations, inputs and
/// shapes that are not known.
SentenceLayer read_dense(const std::filesystem::path& folder);
SentenceLayer read_layer_norm(const std::filesystem::path& folder);
SentenceLayer read_normalize(const std::filesystem::path& folder);

}  // namespace tessera::convert
