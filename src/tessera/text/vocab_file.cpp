#include "tessera/text/vocab_file.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer_config.h"
#include "tessera/text/tokenizer_parts.h"
#include "tessera/text/utf8.h"
#include "tessera/text/word_piece_model.h"

namespace tessera::text {
namespace {

using spec::Json;

VocabularyPointer vocabulary_of(std::string_view text, const std::string& where) {
  if (!is_valid_utf8(text))
    fail(ErrorKind::file, where, "bytes that are not UTF-8; expected one token a line");
  std::vector<std::pair<std::string, int64_t>> tokens;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    tokens.emplace_back(line, static_cast<int64_t>(tokens.size()));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::make_shared<Vocabulary>(std::move(tokens), where);
}

bool flag(const Json& config, const char* key, bool otherwise, const std::string& where) {
  const auto value = config.find(key);
  if (value == config.end() || value->is_null()) return otherwise;
  if (!value->is_boolean())
    fail(ErrorKind::file, where, "tokenizer_config.json: \"{}\" is {}; expected true or false", key,
         spec::kind_of(*value));
  return value->get<bool>();
}

Json object_of(std::string_view text, const std::string& where) {
  const Json value = text.empty() ? Json::object() : spec::parse_json(text, where);
  if (!value.is_object())
    fail(ErrorKind::file, where, "found {}; expected an object", spec::kind_of(value));
  return value;
}

/// Classes whose texts are cut as here; others read a vocab.txt in other ways.
constexpr const char* kClasses[] = {"Bert",     "DistilBert",  "Electra", "MobileBert", "ConvBert",
                                    "LayoutLM", "SqueezeBert", "Lxmert",  "RetriBert"};

bool is_known_class(std::string_view name) {
  for (const std::string_view end : {"Fast", "Tokenizer"})
    if (name.ends_with(end)) name.remove_suffix(end.size());
  return std::find(std::begin(kClasses), std::end(kClasses), name) != std::end(kClasses);
}

/// Keys that would change ids and are not obeyed here.
void refuse_other_ways(const Json& config, const std::string& where) {
  const auto value = [&](const char* key) {
    const auto found = config.find(key);
    return found == config.end() ? Json() : *found;
  };
  const auto refuse = [&](const char* key, const char* expected) {
    fail(ErrorKind::file, where, "{} = {} is not supported; expected {}", key,
         value(key).dump().substr(0, 60), expected);
  };
  for (const char* key : {"do_basic_tokenize", "clean_text"})
    if (!value(key).is_null() && value(key) != Json(true)) refuse(key, "true");
  if (const Json never = value("never_split"); !never.is_null() && never != Json::array())
    refuse("never_split", "none");
  if (const Json split = value("split_special_tokens"); !split.is_null() && split != Json(false))
    refuse("split_special_tokens", "false");
  if (const Json prefix = value("wordpieces_prefix"); !prefix.is_null() && prefix != Json("##"))
    refuse("wordpieces_prefix", "\"##\"");
  const Json name = value("tokenizer_class");
  if (!name.is_null() && (!name.is_string() || !is_known_class(name.get<std::string>())))
    refuse("tokenizer_class", "BertTokenizer or a relative, or a tokenizer.json beside");
}

/// A token as configurations write it: "text", or an object with its flags.
AddedToken token_of(const Json& value, bool special, const std::string& where) {
  if (value.is_string())
    return {.content = value.get<std::string>(), .normalized = !special, .special = special};
  if (!value.is_object())
    fail(ErrorKind::file, where, "found {}; expected a string or an object with \"content\"",
         spec::kind_of(value));
  Json object = value;
  object.erase("__type");
  object["id"] = 0;  // stands elsewhere
  AddedToken token = added_token_from_json(object, where);
  token.special = token.special || special;
  return token;
}

constexpr std::pair<const char*, const char*> kRoles[] = {
    {"bos_token", ""},      {"eos_token", ""},      {"unk_token", "[UNK]"},  {"sep_token", "[SEP]"},
    {"pad_token", "[PAD]"}, {"cls_token", "[CLS]"}, {"mask_token", "[MASK]"}};
constexpr const char* kExtras[] = {"extra_special_tokens", "additional_special_tokens"};

/// Tokens with a role or named as special, in the order in which they get ids.
class SpecialTokens {
 public:
  SpecialTokens(const Json& config, const std::string& where) {
    for (const auto& [key, otherwise] : kRoles) {
      const auto found = config.find(key);
      const bool is_named = found != config.end() && !found->is_null();
      if (is_named)
        roles_[key] = add(*found, where + ": " + key);
      else if (*otherwise != '\0')
        roles_[key] = add(otherwise, where);
      if (is_named) named_.insert(roles_[key]);
    }
    for (const char* key : kExtras) {
      const auto found = config.find(key);
      if (found == config.end() || found->is_null()) continue;
      if (!found->is_structured())
        fail(ErrorKind::file, where, "{} is {}; expected a list of tokens", key,
             spec::kind_of(*found));
      for (const Json& token : *found) named_.insert(add(token, where + ": " + key));
    }
  }

  const std::vector<AddedToken>& all() const { return all_; }
  const std::string& content(const char* role) const { return roles_.at(role); }
  /// Whether the configuration names it: a usual one may be missing.
  bool is_named(const std::string& content) const { return named_.contains(content); }
  bool contains(const std::string& content) const {
    return std::any_of(all_.begin(), all_.end(),
                       [&](const AddedToken& token) { return token.content == content; });
  }

 private:
  std::string add(const Json& value, const std::string& where) {
    AddedToken token = token_of(value, true, where);
    std::string content = token.content;
    if (!contains(content)) all_.push_back(std::move(token));
    return content;
  }

  std::vector<AddedToken> all_;
  std::map<std::string_view, std::string> roles_;
  std::set<std::string> named_;
};

/// Tokens whose ids are stated, by id: "added_tokens_decoder" ({"7": {"content": ...}}), or else
/// the older added_tokens.json ({"text": 7}).
std::map<int64_t, AddedToken> stated_tokens(const Json& config,
                                            const Json& older,
                                            const SpecialTokens& special,
                                            const std::string& where) {
  std::map<int64_t, AddedToken> tokens;
  const auto found = config.find("added_tokens_decoder");
  if (found != config.end()) {
    const std::string path = where + ": tokenizer_config.json: added_tokens_decoder";
    if (!found->is_object())
      fail(ErrorKind::file, path, "found {}; expected an object", spec::kind_of(*found));
    for (const auto& [key, value] : found->items()) {
      if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != std::string::npos)
        fail(ErrorKind::file, path, "key \"{}\"; expected a token id", key.substr(0, 40));
      if (!value.is_object())
        fail(ErrorKind::file, path, "token {} is {}; expected an object with \"content\"", key,
             spec::kind_of(value));
      AddedToken token = token_of(value, false, path + "." + key);
      token.special = token.special || special.contains(token.content);
      if (!tokens.emplace(std::stoll(key), std::move(token)).second)
        fail(ErrorKind::file, path, "id {} stands there twice; expected one token an id", key);
    }
    return tokens;
  }
  for (const auto& [content, id] : older.items()) {
    const std::string path = where + ": added_tokens.json";
    if (!id.is_number_integer() || id.get<int64_t>() < 0)
      fail(ErrorKind::file, path, "the id of \"{}\" is {}; expected an integer from 0",
           content.substr(0, 50), id.dump().substr(0, 40));
    const bool is_special = special.contains(content);
    if (!tokens
             .emplace(
                 id.get<int64_t>(),
                 AddedToken{.content = content, .normalized = !is_special, .special = is_special})
             .second)
      fail(ErrorKind::file, path, "id {} stands there twice; expected one token an id",
           id.get<int64_t>());
  }
  return tokens;
}

/// Gives every added token its id: that of its line, or the next one after the vocabulary.
std::vector<AddedToken> numbered(const std::map<int64_t, AddedToken>& stated,
                                 const SpecialTokens& special,
                                 const Vocabulary& vocabulary,
                                 const std::string& where) {
  std::vector<AddedToken> tokens;
  std::set<std::string> seen;
  int32_t next = vocabulary.size();
  const auto id_of = [&](const std::string& content) {
    const int32_t id = vocabulary.id(content);
    return id == kNoToken ? next++ : id;
  };
  for (const auto& [id, stated_token] : stated) {
    AddedToken token = stated_token;
    if (token.content.empty() || !seen.insert(token.content).second)
      fail(ErrorKind::file, where, "added token {} is \"{}\"; expected a text of its own", id,
           token.content.substr(0, 50));
    const bool has_line = vocabulary.id(token.content) != kNoToken;
    token.id = id_of(token.content);
    if (token.id != id)
      fail(ErrorKind::file, where, "added token \"{}\" has id {}; expected {}, {}",
           token.content.substr(0, 50), id, token.id,
           has_line ? "that of its line" : "the next one after the lines");
    tokens.push_back(std::move(token));
  }
  for (AddedToken token : special.all()) {
    if (token.content.empty() || !seen.insert(token.content).second) continue;
    token.id = id_of(token.content);
    // a usual mask or padding that no one names keeps its id free, no more
    if (vocabulary.id(token.content) == kNoToken && !special.is_named(token.content)) continue;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

Tokenizer tokenizer_from_vocab(std::string_view vocab,
                               const std::string& where,
                               const VocabCompanions& beside) {
  const std::string config_where = where + ": tokenizer_config.json";
  Json config = object_of(beside.config, config_where);
  const Json older = object_of(beside.added_tokens, where + ": added_tokens.json");
  // who lists the added tokens in the configuration names the special ones there too
  if (!config.contains("added_tokens_decoder"))
    config.update(object_of(beside.special_tokens_map, where + ": special_tokens_map.json"));
  refuse_other_ways(config, config_where);

  BertNormalizerOptions normalizer;
  normalizer.lowercase = flag(config, "do_lower_case", true, where);
  normalizer.handle_chinese_chars = flag(config, "tokenize_chinese_chars", true, where);
  if (config.contains("strip_accents") && !config["strip_accents"].is_null())
    normalizer.strip_accents = flag(config, "strip_accents", true, where);

  auto vocabulary = vocabulary_of(vocab, where);
  TokenizerParts parts;
  parts.where = where;
  const SpecialTokens special(config, config_where);
  parts.added = numbered(stated_tokens(config, older, special, where), special, *vocabulary, where);
  const auto role = [&](const char* key) -> std::optional<int32_t> {
    for (const AddedToken& token : parts.added)
      if (token.content == special.content(key)) return token.id;
    return std::nullopt;
  };
  // a mask or padding token may be missing, what surrounds a text may not
  const auto required = [&](const char* key) {
    const auto id = role(key);
    if (!id || (*id >= vocabulary->size() && key == std::string_view("unk_token")))
      fail(ErrorKind::file, where,
           "no line holds the {} \"{}\"; tokenizer_config.json may name another", key,
           special.content(key).substr(0, 50));
    return *id;
  };
  parts.prefix = {required("cls_token")};
  parts.suffix = {required("sep_token")};
  parts.unk = required("unk_token");
  parts.pad = role("pad_token");

  WordPieceOptions options;
  options.unk_token = special.content("unk_token");
  parts.normalizer = make_bert_normalizer(normalizer);
  parts.pre_tokenizer = make_bert_pre_tokenizer();
  parts.model = make_word_piece_model(std::move(vocabulary), options, where);
  parts.decoder = {make_word_piece_decoder(options.continuing_subword_prefix, true)};
  return tokenizer_with_config(std::move(parts), config.dump());
}

}  // namespace tessera::text
