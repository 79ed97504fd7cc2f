// Files next to a tokenizer file that load_tokenizer() reads as well, by path in its folder.
#pragma once

namespace tessera::text {

inline constexpr const char* kTokenizerCompanions[] = {
    "tokenizer_config.json", "added_tokens.json",  "special_tokens_map.json",
    "chat_template.jinja",   "chat_template.json", "additional_chat_templates/tool_use.jinja"};

}  // namespace tessera::text
