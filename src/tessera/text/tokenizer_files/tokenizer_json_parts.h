// Parts of a tokenizer.json, as the `tokenizers` library writes them.
#pragma once

#include <string>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::text {

/// A whole file with these tokens and no other part yet.
spec::Json empty_tokenizer_json(spec::Json added_tokens);
/// An entry of "added_tokens", found in a text as it is.
spec::Json added_token_json(int64_t id, const std::string& content, bool special);
/// {"token": id}; texts must be told apart already.
spec::Json vocabulary_json(const std::vector<std::string>& tokens);
/// A model of byte-pair encoding; merges are pairs of tokens, those that come first before others.
spec::Json bpe_json(spec::Json vocabulary, spec::Json merges);
/// A pre-tokenizer or decoder; use_regex: it cuts as GPT-2's; add_prefix_space: so does it.
spec::Json byte_level_json(bool use_regex, bool add_prefix_space = false);

}  // namespace tessera::text
