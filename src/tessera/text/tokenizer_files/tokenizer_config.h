// tokenizer_config.json, next to a tokenizer file: roles of tokens, and the chat template.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/tokenizer_parts.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

/// The special token at `key` of `config`, given as "text" or {"content": "text", ...}.
std::optional<std::string> special_token_in(const spec::Json& config, const char* key);

/// A boolean of the configuration; nullopt if absent or null. Throws Error(file) for another type.
std::optional<bool> config_flag(const spec::Json& config,
                                const char* key,
                                const std::string& where);

/// `tokenizer_class` without "Tokenizer" and "Fast" ("Bert", "Llama"); "" without one, and for
/// generic classes (PreTrainedTokenizerFast, TokenizersBackend).
std::string tokenizer_class_in(const spec::Json& config);

/// Applies the configuration: roles, side of truncation, `split_special_tokens` and chat templates;
/// missing values keep those of `parts`.
Tokenizer tokenizer_with_config(TokenizerParts parts, const spec::Json& config);

/// Applies `add_prefix_space` of the configuration to the components of a tokenizer.json, for the
/// classes of transformers 5 that respect it ("tokenizer_class": GPT2Tokenizer, LlamaTokenizer,
/// ...); others use tokenizer.json only. Throws Error(file) for a value of another type.
void apply_add_prefix_space(spec::Json& tokenizer,
                            const spec::Json& config,
                            const std::string& where);

}  // namespace tessera::text
