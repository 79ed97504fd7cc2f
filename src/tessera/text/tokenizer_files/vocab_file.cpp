#include "tessera/text/tokenizer_files/vocab_file.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/tokenizer_parts.h"
#include "tessera/text/tokenizer/word_piece_model.h"
#include "tessera/text/tokenizer_files/tokenizer_config.h"
#include "tessera/text/utf8.h"

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

/// Classes whose texts are cut as here; others read a vocab.txt in other ways.
constexpr std::string_view kWordPieceClasses[] = {"Bert",        "DistilBert", "Electra",
                                                  "MobileBert",  "ConvBert",   "LayoutLM",
                                                  "SqueezeBert", "Lxmert",     "RetriBert"};

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
  if (const Json prefix = value("wordpieces_prefix"); !prefix.is_null() && prefix != Json("##"))
    refuse("wordpieces_prefix", "\"##\"");
  const auto known = std::find(std::begin(kWordPieceClasses), std::end(kWordPieceClasses),
                               tokenizer_class_in(config));
  if (!value("tokenizer_class").is_null() && known == std::end(kWordPieceClasses))
    refuse("tokenizer_class", "BertTokenizer or a relative, or a tokenizer.json in the folder");
}

constexpr UsualToken kUsual[] = {{"unk_token", "[UNK]"},
                                 {"sep_token", "[SEP]"},
                                 {"pad_token", "[PAD]"},
                                 {"cls_token", "[CLS]"},
                                 {"mask_token", "[MASK]"}};

/// Gives every added token its id: that of its line, or the next one after the vocabulary.
std::vector<AddedToken> numbered(const ConfiguredTokens& configured,
                                 const Vocabulary& vocabulary,
                                 const std::string& where) {
  AddedTokenList tokens({}, vocabulary);
  std::set<std::string> seen;
  for (const auto& [stated_id, token] : configured.stated()) {
    if (token.content.empty() || !seen.insert(token.content).second)
      fail(ErrorKind::file, where, "added token {} is \"{}\"; expected a text of its own",
           stated_id, token.content.substr(0, 50));
    const int32_t id = tokens.add(token);
    if (id != stated_id)
      fail(ErrorKind::file, where, "added token \"{}\" has id {}; expected {}, {}",
           token.content.substr(0, 50), stated_id, id,
           vocabulary.id(token.content) != kNoToken ? "that of its line"
                                                    : "the next one after the lines");
  }
  for (const AddedToken& token : configured.named()) tokens.add(token);
  std::vector<AddedToken> all = tokens.take();
  // a usual mask or padding that no one names keeps its id free, no more
  std::erase_if(all, [&](const AddedToken& token) {
    return configured.is_usual(token.content) && vocabulary.id(token.content) == kNoToken;
  });
  return all;
}

}  // namespace

Tokenizer tokenizer_from_vocab(std::string_view vocab,
                               const std::string& where,
                               const TokenizerCompanions& companions) {
  const ConfiguredTokens configured(companions, {}, kUsual, where);
  const Json& config = configured.config();
  refuse_other_ways(config, where + ": tokenizer_config.json");

  BertNormalizerOptions normalizer;
  normalizer.lowercase = config_flag(config, "do_lower_case", where).value_or(true);
  normalizer.handle_chinese_chars =
      config_flag(config, "tokenize_chinese_chars", where).value_or(true);
  if (config.contains("strip_accents") && !config.at("strip_accents").is_null())
    normalizer.strip_accents = config_flag(config, "strip_accents", where).value_or(true);

  auto vocabulary = vocabulary_of(vocab, where);
  TokenizerParts parts;
  parts.where = where;
  parts.added = numbered(configured, *vocabulary, where);
  const auto role = [&](const char* key) -> std::optional<int32_t> {
    for (const AddedToken& token : parts.added)
      if (token.content == configured.role(key)) return token.id;
    return std::nullopt;
  };
  // a mask or padding token may be missing, what surrounds a text may not
  const auto required = [&](const char* key) {
    const auto id = role(key);
    if (!id || (*id >= vocabulary->size() && key == std::string_view("unk_token")))
      fail(ErrorKind::file, where,
           "no line holds the {} \"{}\"; tokenizer_config.json may name another", key,
           configured.role(key).substr(0, 50));
    return *id;
  };
  parts.prefix = {required("cls_token")};
  parts.suffix = {required("sep_token")};
  parts.unk = required("unk_token");
  parts.pad = role("pad_token");

  parts.special_roles = configured.roles();

  WordPieceOptions options;
  options.unk_token = configured.role("unk_token");
  parts.normalizer = make_bert_normalizer(normalizer);
  parts.pre_tokenizer = make_bert_pre_tokenizer();
  parts.model = make_word_piece_model(std::move(vocabulary), options, where);
  parts.decoder = {make_word_piece_decoder(options.continuing_subword_prefix, true)};
  return tokenizer_with_config(std::move(parts), config);
}

}  // namespace tessera::text
