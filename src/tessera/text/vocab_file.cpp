#include "tessera/text/vocab_file.h"

#include <utility>
#include <vector>

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

}  // namespace

Tokenizer tokenizer_from_vocab(std::string_view vocab,
                               const std::string& where,
                               std::string_view config_text) {
  const std::string config_where = where + ": tokenizer_config.json";
  const Json config =
      config_text.empty() ? Json::object() : spec::parse_json(config_text, config_where);
  if (!config.is_object())
    fail(ErrorKind::file, config_where, "found {}; expected an object", spec::kind_of(config));

  BertNormalizerOptions normalizer;
  normalizer.lowercase = flag(config, "do_lower_case", true, where);
  normalizer.handle_chinese_chars = flag(config, "tokenize_chinese_chars", true, where);
  if (config.contains("strip_accents") && !config["strip_accents"].is_null())
    normalizer.strip_accents = flag(config, "strip_accents", true, where);

  auto vocabulary = vocabulary_of(vocab, where);
  TokenizerParts parts;
  parts.where = where;
  // a mask or padding token may be missing, what surrounds a text may not
  const auto add = [&](const char* key, const char* otherwise, bool required) {
    const std::string name = special_token_in(config, key).value_or(otherwise);
    const int32_t id = vocabulary->id(name);
    if (id == kNoToken && required)
      fail(ErrorKind::file, where,
           "no line holds the {} \"{}\"; tokenizer_config.json may name another", key,
           name.substr(0, 50));
    if (id == kNoToken) return std::optional<int32_t>();
    bool known = false;
    for (const AddedToken& token : parts.added) known = known || token.id == id;
    if (!known) parts.added.push_back({.id = id, .content = name, .special = true});
    return std::optional(id);
  };
  parts.prefix = {*add("cls_token", "[CLS]", true)};
  parts.suffix = {*add("sep_token", "[SEP]", true)};
  parts.unk = add("unk_token", "[UNK]", true);
  parts.pad = add("pad_token", "[PAD]", false);
  add("mask_token", "[MASK]", false);

  WordPieceOptions options;
  options.unk_token = special_token_in(config, "unk_token").value_or("[UNK]");
  parts.normalizer = make_bert_normalizer(normalizer);
  parts.pre_tokenizer = make_bert_pre_tokenizer();
  parts.model = make_word_piece_model(std::move(vocabulary), options, where);
  parts.decoder = {make_word_piece_decoder(options.continuing_subword_prefix, true)};
  return tokenizer_with_config(std::move(parts), config_text);
}

}  // namespace tessera::text
