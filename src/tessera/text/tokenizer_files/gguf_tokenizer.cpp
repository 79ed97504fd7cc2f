#include "tessera/text/tokenizer_files/gguf_tokenizer.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/bpe_model.h"
#include "tessera/text/tokenizer/longest_match_model.h"
#include "tessera/text/tokenizer/sentencepiece_bpe.h"
#include "tessera/text/tokenizer/tokenizer_parts.h"
#include "tessera/text/tokenizer/unigram_model.h"
#include "tessera/text/tokenizer/word_piece_model.h"
#include "tessera/text/utf8.h"

namespace tessera::text {

/// gguf_tokenizers.json; defined in a source that the build makes from it.
extern const char* const kGgufTokenizersJson;

namespace {

using spec::Json;
enum TokenType : int32_t { normal = 1, unknown, control, user_defined, unused, byte };

constexpr const char* kMetaspace = "\xE2\x96\x81";  // U+2581, how SentencePiece writes a space
constexpr std::string_view kContinuing = "##";      // how BERT's vocabulary writes no space
constexpr const char* kDefaultPre = "default";      // of files that name no pre-tokenizer

const Json& table() {
  static const Json parsed = spec::parse_json(kGgufTokenizersJson, "gguf_tokenizers.json");
  return parsed;
}

// The entry of a list of {"names": [...], ...} that has this name.
const Json& entry_named(const char* list, const std::string& name, const std::string& where) {
  std::vector<std::string> known;
  for (const Json& entry : table().at(list))
    for (const Json& candidate : entry.at("names")) {
      if (candidate == name) return entry;
      known.push_back(candidate.get<std::string>());
    }
  fail(ErrorKind::file, where, "tokenizer.ggml.{} = \"{}\" is not known; expected one of {}", list,
       name.substr(0, 50), fmt::join(known, ", "));
}

void check_lists(const GgufTokenizerData& data, const std::string& where) {
  const size_t n = data.tokens.size();
  if (n == 0) fail(ErrorKind::file, where, "tokenizer.ggml.tokens is missing or empty");
  if (!data.token_types.empty() && data.token_types.size() != n)
    fail(ErrorKind::file, where, "{} token types for {} tokens", data.token_types.size(), n);
  for (size_t i = 0; i < n; ++i)
    if (!is_valid_utf8(data.tokens[i]))
      fail(ErrorKind::file, where, "token {} is not valid UTF-8", i);
}

using SpecialId = std::pair<const char*, std::optional<int64_t>*>;

/// The keys of special ids, and where they are kept.
std::vector<SpecialId> special_ids(GgufTokenizerData& data) {
  return {{"bos_token_id", &data.bos_id},     {"eos_token_id", &data.eos_id},
          {"unknown_token_id", &data.unk_id}, {"padding_token_id", &data.pad_id},
          {"cls_token_id", &data.cls_id},     {"seperator_token_id", &data.sep_id},
          {"eot_token_id", &data.eot_id},     {"eom_token_id", &data.eom_id}};
}

/// Drops ids that stand for no token: -1, 2^32 - 1, or those of a longer vocabulary.
void drop_unknown_ids(GgufTokenizerData& data, std::vector<std::string>& notes) {
  const auto n = static_cast<int64_t>(data.tokens.size());
  for (const auto& [key, id] : special_ids(data)) {
    if (!*id || (**id >= 0 && **id < n)) continue;
    notes.push_back(fmt::format(
        "tokenizer.ggml.{} = {} is not one of the {} token ids; it is not used", key, **id, n));
    id->reset();
  }
}

/// Of the kind's usual ids those that the file names none for.
void fill_usual_ids(GgufTokenizerData& data, const GgufKind& kind, const std::string& where) {
  const auto n = static_cast<int64_t>(data.tokens.size());
  if (kind.kind == "word_piece" && !data.bos_id) data.bos_id = data.cls_id;
  for (const auto& [key, said, usual] : {std::tuple{"bos_token_id", &data.bos_id, kind.bos},
                                         {"eos_token_id", &data.eos_id, kind.eos},
                                         {"unknown_token_id", &data.unk_id, kind.unk},
                                         {"padding_token_id", &data.pad_id, kind.pad},
                                         {"seperator_token_id", &data.sep_id, kind.sep}}) {
    if (*said || !usual) continue;
    if (*usual >= n)
      fail(ErrorKind::file, where,
           "tokenizer.ggml.{} is missing, and of the usual {} there is none", key, *usual);
    *said = usual;
  }
}

std::optional<int32_t> narrow(std::optional<int64_t> id) {
  return id ? std::optional(static_cast<int32_t>(*id)) : std::nullopt;
}

int32_t type_of_token(const GgufTokenizerData& data, size_t id) {
  return data.token_types.empty() ? static_cast<int32_t>(normal) : data.token_types[id];
}

bool is_special_type(int32_t type) {
  return type == unknown || type == control;
}

// Control and unknown tokens are special; user-defined ones are found in any text.
std::vector<AddedToken> added_tokens(const GgufTokenizerData& data) {
  std::vector<AddedToken> added;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const int32_t type = type_of_token(data, id);
    if (!is_special_type(type) && type != user_defined) continue;
    AddedToken token;
    token.id = static_cast<int32_t>(id);
    token.content = data.tokens[id];
    token.special = is_special_type(type);
    added.push_back(std::move(token));
  }
  return added;
}

// The vocabulary of the model proper; `keep` says which tokens belong to it.
template <class Keep>
VocabularyPointer vocabulary_of(std::vector<std::string>& tokens,
                                const std::string& where,
                                Keep&& keep) {
  std::vector<std::pair<std::string, int64_t>> entries;
  for (size_t id = 0; id < tokens.size(); ++id)
    if (keep(id)) entries.emplace_back(std::move(tokens[id]), static_cast<int64_t>(id));
  return std::make_shared<Vocabulary>(std::move(entries), where);
}

void set_byte_level(GgufTokenizerData& data,
                    const GgufKind& kind,
                    const std::string& where,
                    TokenizerParts& parts) {
  parts.pre_tokenizer = make_byte_level_pre_tokenizer(kind.splits, where);
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(data.merges.size());
  for (const std::string& merge : data.merges) {
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos)
      fail(ErrorKind::file, where, "merge {} is \"{}\"; expected \"left right\"", merges.size(),
           merge.substr(0, 50));
    merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  BpeOptions options;
  options.ignore_merges = kind.ignore_merges;
  // a text must not be able to spell a special token, so the model does not know them
  auto vocabulary = vocabulary_of(
      data.tokens, where, [&](size_t id) { return !is_special_type(type_of_token(data, id)); });
  parts.model = make_bpe_model(std::move(vocabulary), merges, options, where);
  parts.decoder = {make_byte_level_decoder()};
}

void set_scores(GgufTokenizerData& data, const std::string& where, TokenizerParts& parts) {
  ScoreOptions options;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const int32_t type = type_of_token(data, id);
    options.from_text.push_back(!is_special_type(type) && type != byte);
  }
  if (parts.unk) options.unk = *parts.unk;
  auto vocabulary = vocabulary_of(data.tokens, where, [](size_t) { return true; });
  parts.model =
      make_score_model(std::move(vocabulary), std::move(data.scores), std::move(options), where);
  const bool prefix_space = data.add_space_prefix.value_or(true);
  std::vector<NormalizerPointer> steps;
  if (prefix_space) steps.push_back(make_prepend(kMetaspace));
  steps.push_back(make_replace(" ", kMetaspace));
  parts.normalizer = make_sequence(std::move(steps));
  parts.decoder = {make_replace_decoder(kMetaspace, " "), make_byte_fallback_decoder(),
                   make_fuse_decoder()};
  if (prefix_space) parts.decoder.push_back(make_strip_decoder(" ", 1, 0));
}

// The bytes of a token that is written as Python writes strings of bytes: \t, \n, \r, \x0a, and
// any other character behind a backslash for itself.
std::string unescaped(std::string_view token, size_t id, const std::string& where) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto digit = [&](size_t at) {
    const size_t value = at < token.size() ? kDigits.find(token[at]) : kDigits.npos;
    if (value == kDigits.npos)
      fail(ErrorKind::file, where, "token {} is \"{}\"; expected two digits 0-9, a-f after \\x", id,
           token.substr(0, 50));
    return value;
  };
  std::string bytes;
  for (size_t at = 0; at < token.size(); ++at) {
    if (token[at] != '\\') {
      bytes += token[at];
      continue;
    }
    if (++at == token.size())
      fail(ErrorKind::file, where, "token {} is \"{}\"; expected a character after the last \\", id,
           token.substr(0, 50));
    if (token[at] == 'x') {
      bytes += static_cast<char>(16 * digit(at + 1) + digit(at + 2));
      at += 2;
    } else {
      constexpr std::string_view kNames = "tnr", kBytes = "\t\n\r";
      const size_t named = kNames.find(token[at]);
      bytes += named == kNames.npos ? token[at] : kBytes[named];
    }
  }
  return bytes;
}

void set_longest_match(GgufTokenizerData& data, const std::string& where, TokenizerParts& parts) {
  // neither special tokens nor rows that stand for none arise from text
  const auto from_text = [&](size_t id) {
    const int32_t type = type_of_token(data, id);
    return !is_special_type(type) && type != unused;
  };
  for (size_t id = 0; id < data.tokens.size(); ++id)
    if (from_text(id) && type_of_token(data, id) != user_defined)
      data.tokens[id] = unescaped(data.tokens[id], id, where);
  parts.model = make_longest_match_model(vocabulary_of(data.tokens, where, from_text),
                                         parts.unk.value_or(kNoToken), where);
  parts.decoder = {make_utf8_decoder()};
}

// Texts are cut as BERT cuts them, always between its two tokens, whatever a file says of those.
void set_word_piece(GgufTokenizerData& data, const std::string& where, TokenizerParts& parts) {
  parts.prefix = {*parts.bos};
  parts.suffix = {static_cast<int32_t>(*data.sep_id)};
  if (!parts.eos) parts.eos = parts.suffix.front();
  BertNormalizerOptions normalizer;
  normalizer.lowercase = data.lowercase.value_or(true);
  normalizer.strip_accents = data.strip_accents;
  parts.normalizer = make_bert_normalizer(normalizer);
  parts.pre_tokenizer = make_bert_pre_tokenizer();
  WordPieceOptions options;
  const auto unk = static_cast<size_t>(*parts.unk);
  options.unk_token = data.tokens[unk];
  options.continuing_subword_prefix = kContinuing;
  auto vocabulary = vocabulary_of(data.tokens, where, [&](size_t id) {
    return id == unk || !is_special_type(type_of_token(data, id));
  });
  parts.model = make_word_piece_model(std::move(vocabulary), options, where);
  parts.decoder = {make_word_piece_decoder(std::string(kContinuing), true)};
}

// As SentencePiece encodes, whose models these are: spaces and characters are replaced in the text,
// and then the whole of it is one piece.
void set_unigram(GgufTokenizerData& data, const std::string& where, TokenizerParts& parts) {
  if (data.scores.size() != data.tokens.size())
    fail(ErrorKind::file, where, "{} scores for {} tokens", data.scores.size(), data.tokens.size());
  UnigramOptions options;
  std::vector<double> scores;
  std::optional<float> least;  // of normal tokens, in float32 as its penalty is subtracted
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const int32_t type = type_of_token(data, id);
    options.from_text.push_back(!is_special_type(type) && type != byte);
    // where a text holds a user's own token, it is that token
    scores.push_back(type == user_defined ? 0 : data.scores[id]);
    if (type == normal) least = std::min(least.value_or(data.scores[id]), data.scores[id]);
  }
  if (least) options.unk_score = static_cast<double>(*least - 10.0f);
  if (parts.unk) options.unk = *parts.unk;
  auto vocabulary = vocabulary_of(data.tokens, where, [](size_t) { return true; });
  parts.model =
      make_unigram_model(std::move(vocabulary), std::move(scores), std::move(options), where);
  const bool prefix = data.add_space_prefix.value_or(false);
  const bool merge = data.remove_extra_whitespaces.value_or(false);
  std::vector<NormalizerPointer> steps;
  if (!data.precompiled_charsmap.empty())
    steps.push_back(make_precompiled(Charsmap(data.precompiled_charsmap, where), true));
  steps.push_back(make_sentence_piece_spaces(prefix, merge));
  parts.normalizer = make_sequence(std::move(steps));
  parts.decoder = {make_replace_decoder(kMetaspace, " "), make_fuse_decoder()};
  if (prefix || merge) parts.decoder.push_back(make_strip_decoder(" ", 1, 0));
}

}  // namespace

void to_word_pieces(GgufTokenizerData& data) {
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    std::string& token = data.tokens[id];
    const int32_t type = type_of_token(data, id);
    if (token.starts_with(kMetaspace) && !is_special_type(type))
      token.erase(0, std::string_view(kMetaspace).size());
    else if (!is_special_type(type) && type != user_defined)
      token.insert(0, kContinuing);
  }
}

std::string gguf_word_piece(std::string_view token) {
  return token.starts_with(kContinuing) ? std::string(token.substr(kContinuing.size()))
                                        : kMetaspace + std::string(token);
}

std::vector<std::string> gguf_pre_tokenizers() {
  std::vector<std::string> names;
  for (const Json& entry : table().at("pre"))
    names.push_back(entry.at("names").at(0).get<std::string>());
  return names;
}

std::string gguf_tokenizer_model(const std::string& kind) {
  for (const Json& entry : table().at("model"))
    if (entry.at("kind") == kind) return entry.at("names").at(0).get<std::string>();
  fail(ErrorKind::internal, "gguf_tokenizer", "no kind {}", kind);
}

GgufKind gguf_kind(const GgufTokenizerData& data, const std::string& where) {
  const Json& kind = entry_named("model", data.model, where);
  GgufKind out;
  out.kind = kind.at("kind");
  const bool byte_level = out.kind == "byte_level";
  const std::string pre = data.pre.empty() ? kDefaultPre : data.pre;
  const Json& usual = byte_level ? entry_named("pre", pre, where) : kind;
  if (byte_level) out.splits = usual.at("split").get<std::vector<std::string>>();
  out.ignore_merges = usual.value("ignore_merges", false);
  out.add_bos = usual.value("add_bos", false);
  out.add_eos = usual.value("add_eos", false);
  for (const auto& [role, id] : {std::pair{"bos", &out.bos},
                                 {"eos", &out.eos},
                                 {"sep", &out.sep},
                                 {"unk", &out.unk},
                                 {"pad", &out.pad}})
    if (usual.contains(role)) *id = usual.at(role).get<int64_t>();
  return out;
}

Tokenizer tokenizer_from_gguf(GgufTokenizerData data, const std::string& where) {
  check_lists(data, where);
  const GgufKind kind = gguf_kind(data, where);
  const bool word_piece = kind.kind == "word_piece";
  TokenizerParts parts;
  parts.where = where;
  if (kind.kind == "byte_level" && data.pre.empty())
    parts.notes.push_back(
        "tokenizer.ggml.pre is missing; the pre-tokenizer \"default\" is used, as in llama.cpp, "
        "which may cut text otherwise than the model was trained with");
  drop_unknown_ids(data, parts.notes);
  fill_usual_ids(data, kind, where);
  parts.bos = narrow(data.bos_id);
  parts.eos = narrow(data.eos_id);
  parts.unk = narrow(data.unk_id);
  parts.pad = narrow(data.pad_id);
  for (const auto& id : {data.eot_id, data.eom_id})
    if (id) parts.further_ends.push_back(static_cast<int32_t>(*id));
  for (const auto& [role, id] : {std::pair{"cls_token", data.cls_id}, {"sep_token", data.sep_id}})
    if (id) parts.special_roles.emplace_back(role, data.tokens[static_cast<size_t>(*id)]);
  parts.chat_template = std::move(data.chat_template);
  parts.tool_template = std::move(data.tool_template);
  if (word_piece) to_word_pieces(data);
  parts.added = added_tokens(data);
  if (word_piece) {
    set_word_piece(data, where, parts);
    return Tokenizer(std::move(parts));
  }
  if (kind.kind == "byte_level")
    set_byte_level(data, kind, where, parts);
  else if (kind.kind == "longest_match")
    set_longest_match(data, where, parts);
  else if (kind.kind == "unigram")
    set_unigram(data, where, parts);
  else
    set_scores(data, where, parts);
  // what the file itself asks for must be possible; what the kind usually does is done where it is
  const auto surround = [&](const char* key, std::optional<bool> asked, bool usual, auto id,
                            auto& side) {
    if (asked.value_or(false) && !id)
      fail(ErrorKind::file, where, "tokenizer.ggml.{} is true, but the file names no such token",
           key);
    if (asked.value_or(usual) && id) side = {*id};
  };
  surround("add_bos_token", data.add_bos, kind.add_bos, parts.bos, parts.prefix);
  surround("add_eos_token", data.add_eos, kind.add_eos, parts.eos, parts.suffix);
  return Tokenizer(std::move(parts));
}

}  // namespace tessera::text
