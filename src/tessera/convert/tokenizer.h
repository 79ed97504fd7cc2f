// The tokenizer that belongs to a model on disk, wherever its format keeps it.
#pragma once

#include <filesystem>
#include <optional>

#include "tessera/format/gguf.h"
#include "tessera/text/gguf_tokenizer.h"
#include "tessera/text/tokenizer.h"

namespace tessera::convert {

/// GGUF metadata ("tokenizer.ggml.*"); nothing when the file holds no tokenizer.
std::optional<text::GgufTokenizerData> tokenizer_data_of(const format::GgufFile& file);
std::optional<text::Tokenizer> tokenizer_of(const format::GgufFile& file, const std::string& where);

/// Whether find_tokenizer() has something to read in a folder.
bool holds_tokenizer(const std::filesystem::path& folder);

/// A model (folder, GGUF) or a tokenizer file, told apart by content. Throws Error(file) when there
/// is none.
text::Tokenizer find_tokenizer(const std::filesystem::path& path, int32_t vocab_size = 0);

/// Puts the tokenizer of `from` (a model or a tokenizer file) into a model folder: tokenizer.json
/// or vocab.txt and their relatives, tokenizer.bin (token scores), or tokenizer.gguf (a GGUF file's
/// metadata without its tensors).
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& folder);

}  // namespace tessera::convert
