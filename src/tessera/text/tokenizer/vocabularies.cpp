#include "tessera/text/tokenizer/vocabularies.h"

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

extern const char* const kVocabulariesJson;  // a source that the build makes

namespace {

std::vector<KnownTokens::Tags> tags_from(const spec::Json& list) {
  std::vector<KnownTokens::Tags> out;
  for (const spec::Json& tags : list) out.push_back({tags.at("open"), tags.at("close")});
  return out;
}

KnownTokens read_known_tokens() {
  const spec::Json json = spec::parse_json(kVocabulariesJson, "vocabularies.json");
  KnownTokens out;
  for (const spec::Json& tokens : json.at("fill_in_middle"))
    out.fill_in_middle.push_back({tokens.at("prefix"), tokens.at("suffix"), tokens.at("middle")});
  out.file_separators = json.at("file_separators").get<std::vector<std::string>>();
  out.masks = json.at("masks").get<std::vector<std::string>>();
  out.sentinel = json.at("sentinel").get<std::string>();
  for (const spec::Json& format : json.at("chat_formats"))
    out.chat_formats.push_back({format.at("token"), format.at("format")});
  out.reasoning = tags_from(json.at("reasoning"));
  out.languages = tags_from(json.at("languages"));
  return out;
}

}  // namespace

const KnownTokens& known_tokens() {
  static const KnownTokens tokens = read_known_tokens();
  return tokens;
}

namespace {

std::optional<int32_t> first_known(const Tokenizer& tokenizer,
                                   const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (const auto id = tokenizer.id(name)) return id;
  return std::nullopt;
}

}  // namespace

std::optional<int32_t> mask_of(const Tokenizer& tokenizer) {
  for (const auto& [role, token] : tokenizer.special_roles())
    if (role == "mask_token")
      if (const auto id = tokenizer.id(token)) return id;
  return first_known(tokenizer, known_tokens().masks);
}

std::optional<MiddleIds> fim_of(const Tokenizer& tokenizer) {
  for (const auto& [prefix, suffix, middle] : known_tokens().fill_in_middle) {
    const auto a = tokenizer.id(prefix), b = tokenizer.id(suffix), c = tokenizer.id(middle);
    if (a && b && c)
      return MiddleIds{*a, *b, *c, first_known(tokenizer, known_tokens().file_separators)};
  }
  return std::nullopt;
}

}  // namespace tessera::text
