// The tokenizer that belongs to a model on disk, wherever its format keeps it.
#pragma once

#include <filesystem>
#include <optional>

#include "tessera/format/gguf.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/text/tokenizer_files/gguf_tokenizer.h"

namespace tessera::convert {

/// GGUF metadata ("tokenizer.ggml.*"); nothing when the file holds no tokenizer.
std::optional<text::GgufTokenizerData> tokenizer_data_of(const format::GgufFile& file);
std::optional<text::Tokenizer> tokenizer_of(const format::GgufFile& file, const std::string& where);

/// What the metadata of tessera's weights (a folder, or one file) name as their tokenizer: "bytes",
/// or a file or folder next to them; "" where they name none, or are of another format. Throws
/// Error(file) for a name that is not within the folder.
std::string named_tokenizer(const std::filesystem::path& weights);

/// Whether find_tokenizer() has something to read in a folder.
bool holds_tokenizer(const std::filesystem::path& folder);

/// A model (folder, GGUF) or a tokenizer file, detected by content. Throws Error(file) when there
/// is none.
text::Tokenizer find_tokenizer(const std::filesystem::path& path, int32_t vocab_size = 0);

/// Puts the tokenizer of `from` (a model or a tokenizer file) into a model folder: tokenizer.json,
/// vocab.txt, tokenizer.model or vocab.json and their relatives, tokenizer.bin (token scores), or
/// tokenizer.gguf (a GGUF file's metadata without its tensors).
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& folder);

/// The tokenizer of a GGUF file as tokenizer.gguf; nothing where it holds none.
void write_tokenizer_gguf(const format::GgufFile& file, const std::filesystem::path& folder);

}  // namespace tessera::convert
