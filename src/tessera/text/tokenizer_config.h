// tokenizer_config.json, the companion of a tokenizer file: which tokens have which role, and the
// chat template.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer_parts.h"
#include "tessera/text/tokenizer.h"

namespace tessera::text {

/// The special token that `config` has under `key`, as "text" or {"content": "text", ...}.
std::optional<std::string> special_token_in(const spec::Json& config, const char* key);

/// `config` is the text of the file, "" when there is none. Roles that it does not name stay as
/// `parts` has them.
Tokenizer tokenizer_with_config(TokenizerParts parts, std::string_view config);

}  // namespace tessera::text
