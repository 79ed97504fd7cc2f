// tokenizer_config.json, the companion of a tokenizer file: which tokens have which role, and the
// chat template.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/tokenizer_parts.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

/// The special token that `config` has under `key`, as "text" or {"content": "text", ...}.
std::optional<std::string> special_token_in(const spec::Json& config, const char* key);

/// `key` of the configuration; nothing where it is absent or null. Throws Error(file) on what is
/// neither true nor false.
std::optional<bool> config_flag(const spec::Json& config,
                                const char* key,
                                const std::string& where);

/// `tokenizer_class` without "Tokenizer" and "Fast" ("Bert", "Llama"); "" without one, and of the
/// classes that stand for any tokenizer (PreTrainedTokenizerFast, TokenizersBackend).
std::string tokenizer_class_in(const spec::Json& config);

/// Roles that the configuration does not name stay as `parts` has them, and so does the side of
/// truncation; `split_special_tokens` and the chat templates are taken from it too.
Tokenizer tokenizer_with_config(TokenizerParts parts, const spec::Json& config);

/// `add_prefix_space` of the configuration, written into the components of a tokenizer.json, for
/// the classes of transformers 5 that obey it ("tokenizer_class": GPT2Tokenizer, LlamaTokenizer,
/// ...); others take it from tokenizer.json alone. Throws Error(file) on a value of another kind.
void apply_add_prefix_space(spec::Json& tokenizer,
                            const spec::Json& config,
                            const std::string& where);

}  // namespace tessera::text
