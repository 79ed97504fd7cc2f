// Tokenizes the files of a recipe: once per tokenizer and content, cached in the run's folder.
// Torch-free. A text longer than 64 MiB is tokenized in pieces that end after a line.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/base/cancel.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/data/token_split.h"
#include "tessera/train/recipe/data_recipe.h"

namespace tessera::train {

/// For pairs, documents alternate: source, then target.
struct TokenData {
  TokenSplit train;
  TokenSplit valid;                       // without tokens if the recipe has no validation
  std::string key;                        // SHA-256 of everything that the tokens depend on
  std::optional<int32_t> separator = {};  // after every document
  std::vector<std::string> notes = {};    // files that are not UTF-8 text, a line each
};

/// The recipe's tokenizer: "bytes" (256 tokens), or the one at its path.
text::Tokenizer open_tokenizer(const DataRecipe& data);

/// The token after every document; throws Error(spec) if the tokenizer does not have it.
std::optional<int32_t> separator_of(const TextData& data, const text::Tokenizer& tokenizer);

/// Opens cache/KEY, or creates it. Throws Error(file) for unreadable and malformed files (with the
/// line), Error(input) for empty ones and for ids outside `vocab`, Error(resource) if the disk is
/// full. Files of tokens have no text bytes. Sources of pairs are encoded by
/// Tokenizer::of_source(), with ids below `source_vocab`, 0 = `vocab`.
TokenData prepare_tokens(const TextData& data,
                         const text::Tokenizer& tokenizer,
                         int64_t vocab,
                         const std::filesystem::path& cache,
                         const CancelToken* cancel = nullptr,
                         int64_t source_vocab = 0);

}  // namespace tessera::train
