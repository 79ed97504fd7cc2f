// Parts of a tokenizer.json, as the `tokenizers` library writes them.
#pragma once

#include <string>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::text {

/// A complete file with these tokens and no other components.
spec::Json empty_tokenizer_json(spec::Json added_tokens);
/// An entry of "added_tokens", searched without normalization.
spec::Json added_token_json(int64_t id, const std::string& content, bool special);
/// {"token": id}; texts must be unique.
spec::Json vocabulary_json(const std::vector<std::string>& tokens);
/// A BPE model; merges are pairs of tokens by priority.
spec::Json bpe_json(spec::Json vocabulary, spec::Json merges);
/// A pre-tokenizer or decoder; use_regex: splits as GPT-2 does; add_prefix_space: adds a space
/// first.
spec::Json byte_level_json(bool use_regex, bool add_prefix_space = false);

}  // namespace tessera::text
