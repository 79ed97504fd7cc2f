// Special tokens in the files next to a tokenizer file: tokenizer_config.json
// ("added_tokens_decoder", the roles "bos_token" to "mask_token", further "*_token" keys,
// "extra_special_tokens", "additional_special_tokens"), special_tokens_map.json and
// added_tokens.json. Precedence, flags and ids are those of transformers 5 (TokenizersBackend):
//
//   1. with "added_tokens_decoder" in the configuration, the other two files are not read;
//   2. else special_tokens_map.json overrides the configuration, and added_tokens.json states ids;
//   3. a token that exists gets the flags of the last file that names it, and stays special;
//   4. a token that does not exist gets the id of the vocabulary, or else the next one after it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/added_tokens.h"
#include "tessera/text/tokenizer/model.h"

namespace tessera::text {

/// Contents of the files next to a tokenizer file; "" = none.
struct TokenizerCompanions {
  std::string_view config = {};              // tokenizer_config.json
  std::string_view added_tokens = {};        // added_tokens.json
  std::string_view special_tokens_map = {};  // special_tokens_map.json
};

/// A role and its default token.
using UsualToken = std::pair<const char*, const char*>;

class ConfiguredTokens {
 public:
  /// `own`: the added tokens of the tokenizer file. Throws Error(file) for a value of another type.
  ConfiguredTokens(const TokenizerCompanions& files,
                   const std::vector<AddedToken>& own,
                   std::span<const UsualToken> usual,
                   const std::string& where);

  /// tokenizer_config.json, merged with special_tokens_map.json if that file is used.
  const spec::Json& config() const { return config_; }
  /// Tokens with given ids.
  const std::map<int64_t, AddedToken>& stated() const { return stated_; }
  /// Other special tokens, in the order in which they get ids.
  const std::vector<AddedToken>& named() const { return named_; }
  /// Roles and their tokens, without defaults.
  std::vector<std::pair<std::string, std::string>> roles() const;
  /// The token of a role; "" = none.
  std::string role(const std::string& key) const;
  /// True if a token is listed only as the default of its role.
  bool is_usual(const std::string& content) const { return usual_.contains(content); }
  /// The special tokens of these files.
  std::set<std::string> special() const;

  /// The own tokens with the files' flags, then the others with their ids.
  std::vector<AddedToken> added(std::vector<AddedToken> own, const Vocabulary& vocabulary) const;

 private:
  struct Lists;
  struct Named {
    std::string key;
    AddedToken token;
    bool is_text = false;  // not an object with flags
  };
  void merge_special_tokens_map(std::string_view text, Lists& lists, const std::string& where);
  void read_roles(std::span<const UsualToken> usual, Lists lists, const std::string& where);
  void read_decoder(const std::string& where);
  void read_older(std::string_view text,
                  const std::vector<AddedToken>& own,
                  const std::string& where);
  void list_named(const std::vector<AddedToken>& own);

  spec::Json config_;
  std::set<std::string> mapped_;  // keys of special_tokens_map.json
  std::vector<Named> roles_, extras_;
  std::set<std::string> role_tokens_, extra_tokens_;
  std::set<std::string> early_special_;  // known to be special before objects are parsed as tokens
  std::set<std::string> usual_;
  std::map<int64_t, AddedToken> stated_;
  std::vector<AddedToken> named_;
};

/// A growing list of added tokens.
class AddedTokenList {
 public:
  AddedTokenList(std::vector<AddedToken> tokens, const Vocabulary& vocabulary);
  /// Adds a token, or updates the flags of the token with the same text; a special token stays
  /// special. A new token gets its id in the vocabulary, or the next free one. Returns the id.
  int32_t add(AddedToken token);
  std::vector<AddedToken> take() { return std::move(tokens_); }

 private:
  std::vector<AddedToken> tokens_;
  const Vocabulary& vocabulary_;
  int32_t next_;
  std::unordered_map<std::string, size_t> by_content_;
};

}  // namespace tessera::text
