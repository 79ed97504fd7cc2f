#include "tessera/text/tokenizer_files/tokenizer_config.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/spec/json.h"

namespace tessera::text {
namespace {

using spec::Json;

// A single template, or a list of named ones.
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

/// `truncation_side`: "left" or "right".
std::optional<bool> truncates_left_in(const Json& config, const std::string& where) {
  const Json value = config.value("truncation_side", Json());
  if (value.is_null()) return std::nullopt;
  if (value != "left" && value != "right")
    fail(ErrorKind::file, where,
         "tokenizer_config.json: \"truncation_side\" is {}; expected \"left\" or \"right\"",
         value.is_string() ? value.dump().substr(0, 40) : spec::kind_of(value));
  return value == "left";
}

/// What `add_prefix_space` is for a class: the prepend_scheme of Metaspace with and without it;
/// null = the flag of ByteLevel. (transformers 5.23; tools/golden/added_tokens.py lists them.)
struct PrefixClass {
  std::string_view name;
  const char* with = nullptr;
  const char* without = nullptr;
};
constexpr PrefixClass kPrefixClasses[] = {
    {"Bart"},
    {"Blenderbot"},
    {"CodeGen"},
    {"Cohere"},
    {"Deberta"},
    {"GPT2"},
    {"GPTNeoX"},
    {"LED"},
    {"LayoutLMv3"},
    {"Longformer"},
    {"Luke"},
    {"MarkupLM"},
    {"Mvp"},
    {"Qwen2"},
    {"Qwen3_5"},
    {"Roberta"},
    {"Whisper"},
    {"Albert", "always", "never"},
    {"Barthez", "always", "never"},
    {"BigBird", "always", "never"},
    {"Camembert", "always", "never"},
    {"FNet", "always", "never"},
    {"LayoutXLM", "always", "never"},
    {"RemBert", "always", "never"},
    {"XGLM", "always", "never"},
    {"XLMRoberta", "always", "never"},
    {"DebertaV2", "always", "first"},
    {"Llama", "first", "never"},
    {"CodeLlama", "first", "never"},
};

const PrefixClass* prefix_class(std::string_view name) {
  for (const std::string_view end : {"Fast", "Tokenizer"})
    if (name.ends_with(end)) name.remove_suffix(end.size());
  for (const PrefixClass& known : kPrefixClasses)
    if (known.name == name) return &known;
  return nullptr;
}

/// Calls `change` for a component, or for each one of a Sequence.
template <class Change>
void for_each_component(Json* component, const char* list, const Change& change) {
  if (component == nullptr || !component->is_object() || !component->contains("type")) return;
  if ((*component)["type"] != "Sequence") {
    change(*component);
    return;
  }
  const auto members = component->find(list);
  if (members == component->end() || !members->is_array()) return;
  for (Json& member : *members) for_each_component(&member, list, change);
}

void set_prepend_scheme(Json& metaspace, const char* scheme) {
  metaspace.erase("add_prefix_space");  // its name before tokenizers 0.15
  metaspace["prepend_scheme"] = scheme;
}

}  // namespace

std::optional<bool> config_flag(const Json& config, const char* key, const std::string& where) {
  const auto value = config.find(key);
  if (value == config.end() || value->is_null()) return std::nullopt;
  if (!value->is_boolean())
    fail(ErrorKind::file, where, "tokenizer_config.json: \"{}\" is {}; expected true or false", key,
         spec::kind_of(*value));
  return value->get<bool>();
}

std::string tokenizer_class_in(const Json& config) {
  const auto value = config.find("tokenizer_class");
  if (value == config.end() || !value->is_string()) return "";
  std::string name = value->get<std::string>();
  for (const std::string_view end : {"Fast", "Tokenizer"})
    if (name.ends_with(end)) name.resize(name.size() - end.size());
  const bool any =
      name == "PreTrained" || name == "TokenizersBackend" || name == "SentencePieceBackend";
  return any ? "" : name;
}

std::optional<std::string> special_token_in(const Json& config, const char* key) {
  const auto value = config.find(key);
  if (value == config.end()) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_object()) return std::nullopt;
  const auto content = value->find("content");
  if (content == value->end() || !content->is_string()) return std::nullopt;
  return content->get<std::string>();
}

Tokenizer tokenizer_with_config(TokenizerParts parts, const Json& config) {
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
  parts.split_special = config_flag(config, "split_special_tokens", parts.where).value_or(false);
  parts.truncates_left = truncates_left_in(config, parts.where).value_or(parts.truncates_left);
  parts.chat_template = chat_template_of(config, "default");
  parts.tool_template = chat_template_of(config, "tool_use");
  return Tokenizer(std::move(parts));
}

void apply_add_prefix_space(Json& tokenizer, const Json& config, const std::string& where) {
  const auto prefix = config_flag(config, "add_prefix_space", where);
  const Json name = config.value("tokenizer_class", Json());
  if (!prefix || !name.is_string() || !tokenizer.is_object()) return;
  const PrefixClass* const kind = prefix_class(name.get<std::string>());
  if (kind == nullptr) return;
  const char* const scheme = *prefix ? kind->with : kind->without;
  const auto part = [&](const char* key) -> Json* {
    const auto found = tokenizer.find(key);
    return found == tokenizer.end() ? nullptr : &*found;
  };
  for_each_component(part("pre_tokenizer"), "pretokenizers", [&](Json& component) {
    if (scheme == nullptr && component["type"] == "ByteLevel")
      component["add_prefix_space"] = *prefix;
    if (scheme != nullptr && component["type"] == "Metaspace")
      set_prepend_scheme(component, scheme);
  });
  if (scheme == nullptr) return;
  for_each_component(part("decoder"), "decoders", [&](Json& component) {
    if (component["type"] == "Metaspace") set_prepend_scheme(component, scheme);
    // Llama's pieces: the decoder drops the space that was added in front
    if (!*prefix && component["type"] == "Strip" && component.value("content", "") == " ")
      component["start"] = 0;
  });
  // the older form of the same: the normalizer adds U+2581 in front
  if (!*prefix)
    for_each_component(part("normalizer"), "normalizers", [&](Json& component) {
      if (component["type"] == "Prepend")
        component = {{"type", "Sequence"}, {"normalizers", Json::array()}};
    });
}

}  // namespace tessera::text
