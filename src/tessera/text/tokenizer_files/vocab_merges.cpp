#include "tessera/text/tokenizer_files/vocab_merges.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer_files/tokenizer_config.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"
#include "tessera/text/tokenizer_files/tokenizer_json_parts.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

using spec::Json;

enum class Around { gpt2, roberta, qwen2 };

struct MergesClass {
  std::string_view name;
  Around around;
};
constexpr MergesClass kMergesClasses[] = {
    {"GPT2", Around::gpt2},    {"CodeGen", Around::gpt2},       {"Roberta", Around::roberta},
    {"Bart", Around::roberta}, {"Longformer", Around::roberta}, {"LED", Around::roberta},
    {"Mvp", Around::roberta},  {"Qwen2", Around::qwen2}};

constexpr const char* kRobertaTokens[] = {"<s>", "<pad>", "</s>", "<unk>", "<mask>"};

/// Where a configuration and its map name none.
std::vector<std::pair<const char*, const char*>> usual_tokens(Around around) {
  constexpr const char* kEnd = "<|endoftext|>";
  switch (around) {
    case Around::gpt2:
      return {{"bos_token", kEnd}, {"eos_token", kEnd}, {"unk_token", kEnd}};
    case Around::qwen2:
      return {{"eos_token", kEnd}, {"unk_token", kEnd}, {"pad_token", kEnd}};
    case Around::roberta:
      break;
  }
  return {{"bos_token", "<s>"},    {"eos_token", "</s>"},  {"sep_token", "</s>"},
          {"cls_token", "<s>"},    {"unk_token", "<unk>"}, {"pad_token", "<pad>"},
          {"mask_token", "<mask>"}};
}

Around around_of(const Json& config, const Json& vocab, const std::string& where) {
  const std::string name = tokenizer_class_in(config);
  for (const MergesClass& known : kMergesClasses)
    if (known.name == name) return known.around;
  if (!name.empty())
    fail(ErrorKind::spec, where,
         "tokenizer_class = {} is not supported with vocab.json and merges.txt; expected GPT2, "
         "CodeGen, Roberta, Bart, Longformer, LED, Mvp or Qwen2, or a tokenizer.json",
         config["tokenizer_class"].dump().substr(0, 60));
  const bool roberta = std::all_of(std::begin(kRobertaTokens), std::end(kRobertaTokens),
                                   [&](const char* token) { return vocab.contains(token); });
  return roberta ? Around::roberta : Around::gpt2;
}

/// [["left", "right"], ...]; the first line may be a version.
Json merges_of(std::string_view text, const std::string& where) {
  const std::string file = where + ": merges.txt";
  if (!is_valid_utf8(text))
    fail(ErrorKind::file, file, "bytes that are not UTF-8; expected two tokens a line");
  Json merges = Json::array();
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view merge = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (merge.ends_with('\r')) merge.remove_suffix(1);
    if (merge.empty() || (line == 1 && merge.starts_with("#version"))) continue;
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 >= merge.size() ||
        space != merge.rfind(' '))
      fail(ErrorKind::file, file, "line {} is \"{}\"; expected two tokens and a space between them",
           line, merge.substr(0, 50));
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  return merges;
}

Json pre_tokenizer_of(Around around, bool prefix) {
  if (around != Around::qwen2) return byte_level_json(true, prefix);
  // Qwen2's own words
  constexpr const char* kWords =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  return {{"type", "Sequence"},
          {"pretokenizers", Json::array({{{"type", "Split"},
                                          {"pattern", {{"Regex", kWords}}},
                                          {"behavior", "Isolated"},
                                          {"invert", false}},
                                         byte_level_json(false, prefix)})}};
}

/// The companions with what the class has where they name nothing, so that what reads them reads
/// that too.
Json settled(Json config, const Json& map, Around around) {
  for (const auto& [role, token] : usual_tokens(around))
    if (!config.contains(role) && !map.contains(role)) config[role] = token;
  return config;
}

/// Special tokens around a text: a classifier's, or those that the configuration asks for.
Json post_processor_of(Around around,
                       const ConfiguredTokens& configured,
                       const std::vector<AddedToken>& added,
                       bool prefix,
                       const std::string& where) {
  const auto pair = [&](const char* role) {
    const std::string name = configured.role(role);
    const auto found = std::find_if(added.begin(), added.end(),
                                    [&](const AddedToken& token) { return token.content == name; });
    if (found == added.end())
      fail(ErrorKind::file, where,
           "no token is the {} \"{}\"; tokenizer_config.json may name another", role,
           name.substr(0, 50));
    return Json::array({name, found->id});
  };
  if (around == Around::roberta)
    return {{"type", "RobertaProcessing"},
            {"sep", pair("sep_token")},
            {"cls", pair("cls_token")},
            {"trim_offsets", true},
            {"add_prefix_space", prefix}};
  Json single = Json::array(), specials = Json::object();
  const auto put = [&](const char* key, const char* role) {
    if (!config_flag(configured.config(), key, where).value_or(false)) return;
    const Json token = pair(role);
    single.push_back({{"SpecialToken", {{"id", token[0]}, {"type_id", 0}}}});
    specials[token[0].get<std::string>()] = {
        {"id", token[0]}, {"ids", {token[1]}}, {"tokens", {token[0]}}};
  };
  put("add_bos_token", "bos_token");
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  put("add_eos_token", "eos_token");
  if (specials.empty()) return nullptr;
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", nullptr},
          {"special_tokens", specials}};
}

Json object_or_empty(std::string_view text, const std::string& where) {
  if (text.empty()) return Json::object();
  Json out = spec::parse_json(text, where);
  return out.is_object() ? out : Json::object();  // ConfiguredTokens refuses it
}

}  // namespace

VocabularyPointer read_vocabulary(const Json& vocab, const std::string& where) {
  if (!vocab.is_object())
    fail(ErrorKind::file, where, "found {}; expected an object of tokens and ids",
         spec::kind_of(vocab));
  std::vector<std::pair<std::string, int64_t>> entries;
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_integer())
      fail(ErrorKind::file, where, "the id of token \"{}\" is {}; expected an integer",
           token.substr(0, 50), spec::kind_of(id));
    entries.emplace_back(token, id.get<int64_t>());
  }
  return std::make_shared<Vocabulary>(std::move(entries), where);
}

Tokenizer tokenizer_from_merges(std::string_view vocab,
                                std::string_view merges,
                                const std::string& where,
                                const TokenizerCompanions& companions) {
  const Json tokens = spec::parse_json(vocab, where);
  const VocabularyPointer vocabulary = read_vocabulary(tokens, where);
  const Json said = object_or_empty(companions.config, where + ": tokenizer_config.json");
  const Around around = around_of(said, tokens, where);
  const Json map =
      said.contains("added_tokens_decoder")
          ? Json::object()
          : object_or_empty(companions.special_tokens_map, where + ": special_tokens_map.json");
  const std::string config = settled(said, map, around).dump();
  const TokenizerCompanions known{config, companions.added_tokens, companions.special_tokens_map};
  const ConfiguredTokens configured(known, {}, {}, where);
  const bool prefix = config_flag(configured.config(), "add_prefix_space", where).value_or(false);
  Json json = empty_tokenizer_json(Json::array());
  if (around == Around::qwen2) json["normalizer"] = {{"type", "NFC"}};
  json["pre_tokenizer"] = pre_tokenizer_of(around, prefix);
  json["post_processor"] =
      post_processor_of(around, configured, configured.added({}, *vocabulary), prefix, where);
  json["decoder"] = byte_level_json(true, true);
  json["model"] = bpe_json(tokens, merges_of(merges, where));
  return tokenizer_from_json(json.dump(), where, known);
}

}  // namespace tessera::text
