#include "tessera/text/tokenizer_config.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/spec/json.h"

namespace tessera::text {
namespace {

using spec::Json;

// A template alone, or a list of named ones.
std::string chat_template_of(const Json& config, const char* name) {
  const auto value = config.find("chat_template");
  if (value == config.end()) return {};
  if (value->is_string())
    return std::string_view(name) == "default" ? value->get<std::string>() : "";
  if (!value->is_array()) return {};
  for (const Json& entry : *value)
    if (entry.is_object() && entry.value("name", Json()) == name &&
        entry.value("template", Json()).is_string())
      return entry["template"].get<std::string>();
  return {};
}

}  // namespace

std::optional<std::string> special_token_in(const Json& config, const char* key) {
  const auto value = config.find(key);
  if (value == config.end()) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_object()) return std::nullopt;
  const auto content = value->find("content");
  if (content == value->end() || !content->is_string()) return std::nullopt;
  return content->get<std::string>();
}

Tokenizer tokenizer_with_config(TokenizerParts parts, std::string_view config_text) {
  if (config_text.empty()) return Tokenizer(std::move(parts));
  const Json config = spec::parse_json(config_text, parts.where + ": tokenizer_config.json");
  if (!config.is_object())
    fail(ErrorKind::file, parts.where, "tokenizer_config.json holds {}; expected an object",
         spec::kind_of(config));
  const Tokenizer names(parts);
  const auto set = [&](const char* key, std::optional<int32_t>& role) {
    if (!config.contains(key)) return;
    const auto token = special_token_in(config, key);
    role = token ? names.id(*token) : std::nullopt;
  };
  set("bos_token", parts.bos);
  set("eos_token", parts.eos);
  set("unk_token", parts.unk);
  set("pad_token", parts.pad);
  parts.chat_template = chat_template_of(config, "default");
  parts.tool_template = chat_template_of(config, "tool_use");
  return Tokenizer(std::move(parts));
}

}  // namespace tessera::text
