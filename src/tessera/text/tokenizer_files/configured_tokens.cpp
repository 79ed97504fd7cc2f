#include "tessera/text/tokenizer_files/configured_tokens.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::text {
namespace {

using spec::Json;

constexpr const char* kRoleKeys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                     "pad_token", "cls_token", "mask_token"};
constexpr const char* kExtra = "extra_special_tokens";
constexpr const char* kAdditional = "additional_special_tokens";  // its name before transformers 5
constexpr const char* kDecoder = "added_tokens_decoder";

enum class Use {
  role,    // always special
  extra,   // special unless its object has another flag
  stated,  // as given
};

Json object_of(std::string_view text, const std::string& where) {
  const Json value = text.empty() ? Json::object() : spec::parse_json(text, where);
  if (!value.is_object())
    fail(ErrorKind::file, where, "found {}; expected an object", spec::kind_of(value));
  return value;
}

/// "text", or an object with "content" and flags; the one that transformers writes has a "__type".
AddedToken token_of(const Json& value, Use use, const std::string& where) {
  if (value.is_string())
    return {.content = value.get<std::string>(),
            .normalized = use == Use::stated,
            .special = use != Use::stated};
  if (!value.is_object())
    fail(ErrorKind::file, where, "found {}; expected a string or an object with \"content\"",
         spec::kind_of(value));
  Json object = value;
  const bool typed = object.erase("__type") > 0;
  object["id"] = 0;  // the id is given elsewhere
  if (use == Use::role) object["special"] = true;
  if (use == Use::extra && !object.contains("special")) object["special"] = !typed;
  return added_token_from_json(object, where);
}

bool is_role(const std::string& key) {
  return std::find(std::begin(kRoleKeys), std::end(kRoleKeys), key) != std::end(kRoleKeys);
}

/// True if a key outside the roles names a token of the model, such as "image_token".
bool is_model_token(const std::string& key, const Json& value) {
  return key.ends_with("_token") && !is_role(key) &&
         (value.is_string() || (value.is_object() && value.contains("content")));
}

bool is_empty(const Json& value) {
  return value.is_null() || (value.is_structured() && value.empty());
}

/// The identity of a list entry: a text never equals an object.
auto entry_of(const AddedToken& token, bool is_text) {
  return std::tuple(token.content, is_text, token.lstrip, token.rstrip, token.single_word,
                    token.normalized, token.special);
}

int64_t id_of_key(const std::string& key, const std::string& where) {
  if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != std::string::npos)
    fail(ErrorKind::file, where, "key \"{}\"; expected a token id", key.substr(0, 40));
  return std::stoll(key);
}

}  // namespace

/// Lists of further special tokens have two names. A list under the elder name holds where there is
/// none under the other; an object names roles.
struct ConfiguredTokens::Lists {
  std::optional<Json> list, elder;
  std::vector<Json> objects;

  void settle() {
    if (elder && is_empty(list.value_or(Json()))) list = std::exchange(elder, std::nullopt);
    take_object();
  }
  void take_object() {
    if (!list || !list->is_object()) return;
    objects.push_back(std::move(*list));
    list.reset();
  }
};

ConfiguredTokens::ConfiguredTokens(const TokenizerCompanions& files,
                                   const std::vector<AddedToken>& own,
                                   std::span<const UsualToken> usual,
                                   const std::string& where)
    : config_(object_of(files.config, where + ": tokenizer_config.json")) {
  Lists lists;
  if (config_.contains(kExtra)) lists.list = config_[kExtra];
  if (config_.contains(kAdditional)) lists.elder = config_[kAdditional];
  lists.settle();
  if (!config_.contains(kDecoder)) merge_special_tokens_map(files.special_tokens_map, lists, where);
  read_roles(usual, std::move(lists), where);
  if (config_.contains(kDecoder))
    read_decoder(where + ": tokenizer_config.json: " + kDecoder);
  else
    read_older(files.added_tokens, own, where + ": added_tokens.json");
  list_named(own);
}

void ConfiguredTokens::merge_special_tokens_map(std::string_view text,
                                                Lists& lists,
                                                const std::string& where) {
  const Json map = object_of(text, where + ": special_tokens_map.json");
  for (const auto& [key, value] : map.items()) {
    if (key == kAdditional) {
      lists.elder = value;
    } else if (key == kExtra && value.is_array()) {
      Json all = lists.list && lists.list->is_array() ? *lists.list : Json::array();
      for (const Json& token : value)
        if (std::find(all.begin(), all.end(), token) == all.end()) all.push_back(token);
      lists.list = std::move(all);
    } else if (key == kExtra) {
      lists.list = value;
      lists.take_object();
    } else {
      config_[key] = value;
      mapped_.insert(key);
    }
  }
}

void ConfiguredTokens::read_roles(std::span<const UsualToken> usual,
                                  Lists lists,
                                  const std::string& where) {
  const std::string path = where + ": tokenizer_config.json: ";
  const auto add = [&](const std::string& key, const Json& value) {
    roles_.push_back({key, token_of(value, Use::role, path + key), value.is_string()});
    role_tokens_.insert(roles_.back().token.content);
  };
  std::vector<UsualToken> missing;
  for (const char* key : kRoleKeys) {
    if (const Json value = config_.value(key, Json()); !value.is_null()) {
      add(key, value);
      if (value.is_string() || mapped_.contains(key))
        early_special_.insert(roles_.back().token.content);
      continue;
    }
    for (const UsualToken& role : usual)
      if (std::string_view(role.first) == key) {
        roles_.push_back({key, token_of(role.second, Use::role, path + key), true});
        missing.push_back(role);
      }
  }
  for (const auto& [key, value] : config_.items())
    if (is_model_token(key, value)) add(key, value);
  for (const Json& object : lists.objects)
    for (const auto& [key, value] : object.items()) add(key, value);
  const bool early = lists.list.has_value();
  const Json list = lists.list ? *lists.list : lists.elder.value_or(Json());
  if (!list.is_null() && !list.is_array())
    fail(ErrorKind::file, where + ": tokenizer_config.json", "{} is {}; expected a list of tokens",
         early ? kExtra : kAdditional, spec::kind_of(list));
  for (const Json& value : list) {
    extras_.push_back({kExtra, token_of(value, Use::extra, path + kExtra), value.is_string()});
    extra_tokens_.insert(extras_.back().token.content);
    if (early && value.is_string()) early_special_.insert(extras_.back().token.content);
  }
  for (const auto& [key, content] : missing)
    if (!role_tokens_.contains(content) && !extra_tokens_.contains(content)) usual_.insert(content);
  role_tokens_.insert(usual_.begin(), usual_.end());
}

void ConfiguredTokens::read_decoder(const std::string& where) {
  const Json& tokens = config_.at(kDecoder);
  if (!tokens.is_object())
    fail(ErrorKind::file, where, "found {}; expected an object", spec::kind_of(tokens));
  for (const auto& [key, value] : tokens.items()) {
    const int64_t id = id_of_key(key, where);
    if (!value.is_object())
      fail(ErrorKind::file, where, "token {} is {}; expected an object with \"content\"", key,
           spec::kind_of(value));
    if (!stated_.emplace(id, token_of(value, Use::stated, where + "." + key)).second)
      fail(ErrorKind::file, where, "id {} is repeated; expected one token per id", key);
  }
}

void ConfiguredTokens::read_older(std::string_view text,
                                  const std::vector<AddedToken>& own,
                                  const std::string& where) {
  const Json tokens = object_of(text, where);
  for (const auto& [content, id] : tokens.items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0)
      fail(ErrorKind::file, where, "the id of \"{}\" is {}; expected an integer from 0",
           content.substr(0, 50), id.dump().substr(0, 40));
    const AddedToken token{
        .content = content,
        .normalized = !early_special_.contains(content),
        .special = role_tokens_.contains(content) || extra_tokens_.contains(content)};
    if (!stated_.emplace(id.get<int64_t>(), token).second)
      fail(ErrorKind::file, where, "id {} is repeated; expected one token per id",
           id.get<int64_t>());
  }
  // of two tokens with one id, that of the tokenizer file is used
  for (const AddedToken& token : own) {
    AddedToken& held = stated_[token.id];
    // the flags of the other are used if it has a role
    if (held.content != token.content)
      for (Named& role : roles_)
        if (role.token.content == held.content && !held.content.empty()) role.token = held;
    held = token;
  }
}

void ConfiguredTokens::list_named(const std::vector<AddedToken>& own) {
  std::unordered_set<std::string> known;
  for (const AddedToken& token : own) known.insert(token.content);
  for (auto& [id, token] : stated_) {
    token.special = token.special || role_tokens_.contains(token.content);
    known.insert(token.content);
  }
  std::set<decltype(entry_of({}, false))> listed;
  const auto add = [&](const Named& entry) {
    AddedToken token = entry.token;
    if (token.content.empty() || known.contains(token.content)) return;
    if (!listed.insert(entry_of(token, entry.is_text)).second) return;
    token.special = token.special || role_tokens_.contains(token.content);
    named_.push_back(std::move(token));
  };
  for (const Named& role : roles_) add(role);
  for (const Named& extra : extras_) add(extra);
}

std::vector<std::pair<std::string, std::string>> ConfiguredTokens::roles() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const Named& role : roles_)
    if (!usual_.contains(role.token.content)) out.emplace_back(role.key, role.token.content);
  return out;
}

std::string ConfiguredTokens::role(const std::string& key) const {
  for (const Named& role : roles_)
    if (role.key == key) return role.token.content;
  return {};
}

std::set<std::string> ConfiguredTokens::special() const {
  std::set<std::string> contents;
  for (const auto& [id, token] : stated_)
    if (token.special) contents.insert(token.content);
  for (const AddedToken& token : named_)
    if (token.special) contents.insert(token.content);
  return contents;
}

std::vector<AddedToken> ConfiguredTokens::added(std::vector<AddedToken> own,
                                                const Vocabulary& vocabulary) const {
  AddedTokenList list(std::move(own), vocabulary);
  for (const auto& [id, token] : stated_) list.add(token);
  for (const AddedToken& token : named_) list.add(token);
  return list.take();
}

AddedTokenList::AddedTokenList(std::vector<AddedToken> tokens, const Vocabulary& vocabulary)
    : tokens_(std::move(tokens)), vocabulary_(vocabulary), next_(vocabulary.count()) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    by_content_.emplace(tokens_[i].content, i);
    next_ = std::max(next_, tokens_[i].id + 1);
  }
}

int32_t AddedTokenList::add(AddedToken token) {
  const auto same = by_content_.find(token.content);
  if (same != by_content_.end()) {
    AddedToken& old = tokens_[same->second];
    token.id = old.id;
    token.special = token.special || old.special;
    token.decodes_normalized = old.normalized || old.decodes_normalized;
    old = std::move(token);
    return old.id;
  }
  const int32_t known = vocabulary_.id(token.content);
  token.id = known == kNoToken ? next_ : known;
  next_ = std::max(next_, token.id + 1);
  by_content_.emplace(token.content, tokens_.size());
  tokens_.push_back(std::move(token));
  return tokens_.back().id;
}

}  // namespace tessera::text
