// A tokenizer as GGUF metadata holds it, and such a one as Hugging Face's files hold it.
// Torch-free.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/format/gguf.h"

namespace tessera::convert {

/// The entries "tokenizer.*" for the tokenizer of a model (a folder or a GGUF file) or a tokenizer
/// file. `vocab` is the number of rows of the embedding: ids without a token are listed as unused.
/// Kinds of GGUF: byte-level BPE, scores with bytes to fall back on, and BERT's WordPiece. What is
/// written is read again, and must cut a text full of pitfalls as the original does: this also
/// chooses the pre-tokenizer's name, as llama.cpp's converter does by a list of sums. Throws
/// Error(file) where no kind does.
std::vector<format::GgufEntry> gguf_tokenizer_entries(const std::filesystem::path& path,
                                                      int64_t vocab);

/// As copy_tokenizer(), into a Hugging Face folder: what GGUF metadata hold, token scores
/// (tokenizer.bin) and "bytes" become tokenizer.json and tokenizer_config.json, where these cut a
/// text full of pitfalls alike. Otherwise it stays tokenizer.gguf or tokenizer.bin, which other
/// programs do not read; returns why ("" where nothing stayed).
std::string copy_tokenizer_to_hf(const std::filesystem::path& from,
                                 const std::filesystem::path& folder);
/// The same of an open GGUF file.
std::string copy_tokenizer_to_hf(const format::GgufFile& from, const std::filesystem::path& folder);

}  // namespace tessera::convert
