#include "tessera/text/tokenizer_files/tokenizer_json.h"

#include <array>
#include <set>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/bpe_model.h"
#include "tessera/text/tokenizer/tokenizer_parts.h"
#include "tessera/text/tokenizer/unigram_model.h"
#include "tessera/text/tokenizer/word_piece_model.h"
#include "tessera/text/tokenizer_files/json_object.h"
#include "tessera/text/tokenizer_files/tokenizer_config.h"

namespace tessera::text {
namespace {

using spec::Json;

constexpr size_t kMaxMergeBytes = 4096;  // a merge with many spaces is tried at each of them

VocabularyPointer vocabulary_from_json(const Json& value, const std::string& where) {
  if (!value.is_object())
    fail(ErrorKind::file, where, "\"vocab\" is {}; expected an object", spec::kind_of(value));
  std::vector<std::pair<std::string, int64_t>> tokens;
  tokens.reserve(value.size());
  for (const auto& [token, id] : value.items()) {
    if (!id.is_number_integer())
      fail(ErrorKind::file, where, "the id of token \"{}\" is {}; expected an integer",
           token.substr(0, 50), spec::kind_of(id));
    tokens.emplace_back(token, id.get<int64_t>());
  }
  return std::make_shared<Vocabulary>(std::move(tokens), where);
}

using Merge = std::pair<std::string, std::string>;

// Cuts "left right" at its space. Where tokens hold spaces themselves, the cut is the one that
// leaves two tokens whose joined text is a token; nullopt unless there is exactly one.
std::optional<Merge> cut_merge(const std::string& text, const Vocabulary& vocabulary) {
  std::optional<Merge> cut;
  size_t n_spaces = 0;
  size_t n_cuts = 0;
  for (size_t space = text.find(' '); space != std::string::npos;
       space = text.find(' ', space + 1)) {
    Merge merge(text.substr(0, space), text.substr(space + 1));
    ++n_spaces;
    const bool fits = vocabulary.id(merge.first) != kNoToken &&
                      vocabulary.id(merge.second) != kNoToken &&
                      vocabulary.id(merge.first + merge.second) != kNoToken;
    if (fits) ++n_cuts;
    if (fits || !cut) cut = std::move(merge);
  }
  if (n_spaces > 1 && n_cuts != 1) return std::nullopt;
  return cut;
}

// "left right" or ["left", "right"]
Merge merge_from_json(const Json& value,
                      size_t rank,
                      const Vocabulary& vocabulary,
                      const std::string& where) {
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string())
    return {value[0].get<std::string>(), value[1].get<std::string>()};
  if (value.is_string() && value.get_ref<const std::string&>().size() <= kMaxMergeBytes)
    if (auto merge = cut_merge(value.get_ref<const std::string&>(), vocabulary)) return *merge;
  fail(ErrorKind::file, where,
       "merge {} is {}; expected \"left right\" or [\"left\", \"right\"], tokens both", rank,
       value.dump().substr(0, 80));
}

ModelPointer bpe_from_json(const Json& value, const std::string& where) {
  const JsonObject object(
      value, where,
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const Json* dropout = object.find("dropout"); dropout != nullptr && *dropout != 0)
    fail(ErrorKind::file, where, "dropout = {}; only tokenizers without dropout are supported",
         dropout->dump().substr(0, 20));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const std::string affix = object.string(key, ""); !affix.empty())
      fail(ErrorKind::file, where, "{} = \"{}\" is not supported; expected none", key,
           affix.substr(0, 20));
  BpeOptions options;
  options.unk_token = object.string("unk_token", "");
  options.fuse_unk = object.boolean("fuse_unk", false);
  options.byte_fallback = object.boolean("byte_fallback", false);
  options.ignore_merges = object.boolean("ignore_merges", false);
  const Json& list = object.at("merges");
  if (!list.is_array())
    fail(ErrorKind::file, where, "\"merges\" is {}; expected an array", spec::kind_of(list));
  auto vocabulary = vocabulary_from_json(object.at("vocab"), where);
  std::vector<Merge> merges;
  merges.reserve(list.size());
  for (const Json& merge : list)
    merges.push_back(merge_from_json(merge, merges.size(), *vocabulary, where));
  return make_bpe_model(std::move(vocabulary), merges, options, where);
}

ModelPointer word_piece_from_json(const Json& value, const std::string& where) {
  const JsonObject object(
      value, where,
      {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  WordPieceOptions options;
  options.unk_token = object.string("unk_token", options.unk_token);
  options.continuing_subword_prefix =
      object.string("continuing_subword_prefix", options.continuing_subword_prefix);
  options.max_input_chars_per_word =
      object.integer("max_input_chars_per_word", options.max_input_chars_per_word);
  return make_word_piece_model(vocabulary_from_json(object.at("vocab"), where), options, where);
}

// [["token", log-probability], ...] by id
ModelPointer unigram_from_json(const Json& value,
                               const std::set<std::string>& special,
                               const std::string& where) {
  const JsonObject object(value, where, {"type", "unk_id", "byte_fallback", "vocab"});
  const Json& list = object.at("vocab");
  if (!list.is_array())
    fail(ErrorKind::file, where, "\"vocab\" is {}; expected an array", spec::kind_of(list));
  std::vector<std::pair<std::string, int64_t>> tokens;
  std::vector<double> scores;
  tokens.reserve(list.size());
  scores.reserve(list.size());
  for (const Json& entry : list) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
      fail(ErrorKind::file, where, "token {} is {}; expected [\"token\", log-probability]",
           tokens.size(), entry.dump().substr(0, 50));
    tokens.emplace_back(entry[0].get<std::string>(), static_cast<int64_t>(tokens.size()));
    scores.push_back(entry[1].get<double>());
  }
  UnigramOptions options;
  if (object.has("unk_id")) {
    const int64_t unk = object.integer("unk_id");
    if (unk < 0 || unk >= std::ssize(tokens))
      fail(ErrorKind::file, where, "unk_id = {}; expected the id of one of {} tokens", unk,
           tokens.size());
    options.unk = static_cast<int32_t>(unk);
  }
  options.byte_fallback = object.boolean("byte_fallback", false);
  // text must not form a special token, which is in the vocabulary too
  options.from_text.assign(tokens.size(), true);
  for (size_t id = 0; id < tokens.size(); ++id)
    if (special.contains(tokens[id].first)) options.from_text[id] = false;
  return make_unigram_model(std::make_shared<Vocabulary>(std::move(tokens), where),
                            std::move(scores), std::move(options), where);
}

ModelPointer model_from_json(const Json& value,
                             const std::set<std::string>& special,
                             const std::string& where) {
  if (!value.is_object())
    fail(ErrorKind::file, where, "found {}; expected an object", spec::kind_of(value));
  // files of early versions name no type; only BPE has merges, and only Unigram a list of tokens
  const bool typed = value.contains("type");
  const std::string type = !typed && value.contains("merges") ? "BPE"
                           : !typed && value.contains("vocab") && value["vocab"].is_array()
                               ? "Unigram"
                               : type_of(value, where);
  if (type == "BPE") return bpe_from_json(value, where);
  if (type == "WordPiece") return word_piece_from_json(value, where);
  if (type == "Unigram") return unigram_from_json(value, special, where);
  fail(ErrorKind::file, where, "model \"{}\" is not supported; expected BPE, WordPiece or Unigram",
       type.substr(0, 50));
}

int32_t id_from_json(const Json& value, const std::string& where) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
      value.get<int64_t>() > static_cast<int64_t>(kMaxTokens))
    fail(ErrorKind::file, where, "token id {}; expected 0 to {}", value.dump().substr(0, 40),
         kMaxTokens);
  return value.get<int32_t>();
}

struct Surroundings {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
  std::optional<std::vector<int32_t>> between = {};  // between the texts of a pair
};

/// The special tokens of one form of a template: before, between and after its texts, which are
/// named in order.
std::vector<std::vector<int32_t>> template_gaps(const Json& pieces,
                                                const Json& specials,
                                                const std::string& where,
                                                std::string_view form,
                                                std::string_view texts) {
  std::vector<std::vector<int32_t>> gaps(1);
  for (const Json& piece : pieces) {
    const JsonObject kind(piece, fmt::format("{}.{}", where, form), {"SpecialToken", "Sequence"});
    if (kind.has("Sequence")) {
      const JsonObject sequence(kind.at("Sequence"), kind.where(), {"id", "type_id"});
      const std::string id = sequence.string("id");
      if (gaps.size() <= texts.size() && id != texts.substr(gaps.size() - 1, 1))
        fail(ErrorKind::file, kind.where(), "sequence \"{}\"; expected \"{}\"", id.substr(0, 20),
             texts.substr(gaps.size() - 1, 1));
      gaps.emplace_back();
      continue;
    }
    const JsonObject special(kind.at("SpecialToken"), kind.where(), {"id", "type_id"});
    const std::string name = special.string("id");
    const auto found = specials.find(name);
    if (found == specials.end())
      fail(ErrorKind::file, where, "special token \"{}\" is not in \"special_tokens\"",
           name.substr(0, 50));
    const JsonObject meaning(*found, where + ".special_tokens", {"id", "ids", "tokens"});
    const Json& ids = meaning.at("ids");
    if (!ids.is_array()) fail(ErrorKind::file, meaning.where(), "\"ids\" is no array");
    for (const Json& id : ids) gaps.back().push_back(id_from_json(id, meaning.where()));
  }
  return gaps;
}

// A template: special tokens by name, and the positions of the texts among them.
Surroundings template_from_json(const Json& value, const std::string& where) {
  const JsonObject object(value, where, {"type", "single", "pair", "special_tokens"});
  const Json& pieces = object.at("single");
  const Json& specials = object.at("special_tokens");
  if (!pieces.is_array() || !specials.is_object())
    fail(ErrorKind::file, where, "\"single\" is no array, or \"special_tokens\" no object");
  auto gaps = template_gaps(pieces, specials, where, "single", "A");
  if (gaps.size() != 2)
    fail(ErrorKind::file, where, "the template holds the text {} times; expected once",
         gaps.size() - 1);
  Surroundings out{std::move(gaps[0]), std::move(gaps[1])};
  if (!object.has("pair") || !object.at("pair").is_array()) return out;
  // an unsupported form of a pair (the second text first) is ignored
  try {
    gaps = template_gaps(object.at("pair"), specials, where, "pair", "AB");
  } catch (const Error&) {
    return out;
  }
  if (gaps.size() == 3) out.between = std::move(gaps[1]);
  return out;
}

Surroundings classifier_from_json(const Json& value, const std::string& where, int separators) {
  const JsonObject object(value, where, {"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
  const auto token = [&](const char* key) {
    const Json& pair = object.at(key);
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string())
      fail(ErrorKind::file, where, "\"{}\" is {}; expected [\"token\", id]", key,
           pair.dump().substr(0, 50));
    return id_from_json(pair[1], where);
  };
  return {{token("cls")},
          {token("sep")},
          std::vector<int32_t>(static_cast<size_t>(separators), token("sep"))};
}

Surroundings post_processor_from_json(const Json& value, const std::string& where) {
  if (value.is_null()) return {};
  const std::string type = type_of(value, where);
  if (type == "TemplateProcessing") return template_from_json(value, where);
  if (type == "RobertaProcessing" || type == "BertProcessing")
    return classifier_from_json(value, where, type == "RobertaProcessing" ? 2 : 1);
  if (type == "ByteLevel") {  // moves offsets only, and ids have none
    const JsonObject known(value, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return {};
  }
  if (type == "Sequence") {
    const JsonObject object(value, where, {"type", "processors"});
    const Json& list = object.at("processors");
    if (!list.is_array()) fail(ErrorKind::file, where, "\"processors\" is no array");
    Surroundings out;
    for (size_t i = 0; i < list.size(); ++i) {
      const auto next =
          post_processor_from_json(list[i], fmt::format("{}.processors[{}]", where, i));
      out.prefix.insert(out.prefix.begin(), next.prefix.begin(), next.prefix.end());
      out.suffix.insert(out.suffix.end(), next.suffix.begin(), next.suffix.end());
      if (next.between) out.between = next.between;
    }
    return out;
  }
  fail(ErrorKind::file, where,
       "post-processor \"{}\" is not supported; expected TemplateProcessing, RobertaProcessing, "
       "BertProcessing, ByteLevel or Sequence",
       type.substr(0, 50));
}

std::vector<AddedToken> added_tokens_from_json(const Json& value, const std::string& where) {
  if (!value.is_array())
    fail(ErrorKind::file, where, "found {}; expected an array", spec::kind_of(value));
  std::vector<AddedToken> tokens;
  for (size_t i = 0; i < value.size(); ++i)
    tokens.push_back(added_token_from_json(value[i], fmt::format("{}[{}]", where, i)));
  return tokens;
}

/// The direction of `truncation`: "Left" or "Right", which is what is meant where it is left out.
bool truncates_left(const Json& truncation, const std::string& where) {
  if (!truncation.is_object()) return false;
  const Json direction = truncation.value("direction", Json("Right"));
  if (direction != "Left" && direction != "Right")
    fail(ErrorKind::file, where, "direction is {}; expected \"Left\" or \"Right\"",
         direction.is_string() ? direction.dump().substr(0, 40) : spec::kind_of(direction));
  return direction == "Left";
}

}  // namespace

Tokenizer tokenizer_from_json(std::string_view json,
                              const std::string& where,
                              const TokenizerCompanions& companions) {
  Json root = spec::parse_json(json, where);
  const JsonObject object(root, where,
                          {"version", "truncation", "padding", "added_tokens", "normalizer",
                           "pre_tokenizer", "post_processor", "decoder", "model"});
  const auto part = [&](const char* key) {
    const Json* value = object.find(key);
    return value == nullptr ? Json() : *value;
  };
  const auto path = [&](const char* key) { return where + ": " + key; };
  TokenizerParts parts;
  parts.where = where;
  parts.truncates_left = truncates_left(part("truncation"), path("truncation"));
  if (const Json* added = object.find("added_tokens"))
    parts.added = added_tokens_from_json(*added, path("added_tokens"));
  const ConfiguredTokens configured(companions, parts.added, {}, where);
  apply_add_prefix_space(root, configured.config(), where);
  parts.normalizer = make_normalizer(part("normalizer"), path("normalizer"));
  parts.pre_tokenizer = make_pre_tokenizer(part("pre_tokenizer"), path("pre_tokenizer"));
  std::set<std::string> special = configured.special();
  for (const AddedToken& token : parts.added)
    if (token.special) special.insert(token.content);
  parts.model = model_from_json(object.at("model"), special, path("model"));
  parts.added = configured.added(std::move(parts.added), parts.model->vocabulary());
  auto surroundings = post_processor_from_json(part("post_processor"), path("post_processor"));
  parts.prefix = std::move(surroundings.prefix);
  parts.suffix = std::move(surroundings.suffix);
  parts.between = std::move(surroundings.between);
  parts.decoder = make_decoder(part("decoder"), path("decoder"));
  parts.special_roles = configured.roles();
  return tokenizer_with_config(std::move(parts), configured.config());
}

}  // namespace tessera::text
