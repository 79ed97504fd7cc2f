// From the files of a recipe to tokens: built once per tokenizer and content, kept in the run's
// folder. Torch-free. A text longer than 64 MiB is tokenised in pieces that end after a line.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/base/cancel.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/data/token_split.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {

/// Of pairs, documents alternate: a source, then its text.
struct TokenData {
  TokenSplit train;
  TokenSplit valid;                       // without tokens when the recipe has no validation
  std::string key;                        // SHA-256 of all that the tokens depend on
  std::optional<int32_t> separator = {};  // behind every document
  std::vector<std::string> notes = {};    // files that are no UTF-8 text, a line each
};

/// The recipe's tokenizer: "bytes" (256 tokens), or what lies at its path.
text::Tokenizer open_tokenizer(const DataRecipe& data);

/// What is put behind every document; Error(spec) for a token that the tokenizer does not have.
std::optional<int32_t> separator_of(const DataRecipe& data, const text::Tokenizer& tokenizer);

/// Opens cache/KEY, or makes it. Throws Error(file) for unreadable and malformed files (with the
/// line), Error(input) for empty ones and for ids beyond `vocab`, Error(resource) when the disk is
/// full. Of files of tokens the text's bytes are not known.
TokenData prepare_tokens(const DataRecipe& data,
                         const text::Tokenizer& tokenizer,
                         int64_t vocab,
                         const std::filesystem::path& cache,
                         const CancelToken* cancel = nullptr);

}  // namespace tessera::train
