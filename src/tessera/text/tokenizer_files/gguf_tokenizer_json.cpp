#include "tessera/text/tokenizer_files/gguf_tokenizer_json.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "tessera/base/base64.h"
#include "tessera/base/error.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer_files/tokenizer_json_parts.h"

namespace tessera::text {
namespace {

using spec::Json;

constexpr const char* kSpaceMark = "\xE2\x96\x81";  // U+2581, how SentencePiece writes a space
constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4;

std::string token_of(const GgufTokenizerData& data, int64_t id) {
  return data.tokens.at(static_cast<size_t>(id));
}

void check_told_apart(const GgufTokenizerData& data, const std::string& where) {
  std::unordered_set<std::string_view> seen;
  for (size_t id = 0; id < data.tokens.size(); ++id)
    if (!seen.insert(data.tokens[id]).second)
      fail(ErrorKind::file, where,
           "token {} is written as another one is; tokenizer.json tells tokens apart by that", id);
}

Json added_tokens_json(const GgufTokenizerData& data) {
  Json added = Json::array();
  for (size_t id = 0; id < data.token_types.size(); ++id)
    if (const int32_t type = data.token_types[id];
        type == kUnknown || type == kControl || type == kUserDefined)
      added.push_back(
          added_token_json(static_cast<int64_t>(id), data.tokens[id], type != kUserDefined));
  return added;
}

Json in_sequence(const char* list, Json steps) {
  if (steps.empty()) return nullptr;
  if (steps.size() == 1) return steps[0];
  return {{"type", "Sequence"}, {list, std::move(steps)}};
}

Json merges_json(const GgufTokenizerData& data) {
  Json merges = Json::array();
  for (const std::string& merge : data.merges) {
    const size_t space = merge.find(' ', 1);
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  return merges;
}

void set_byte_level(const GgufTokenizerData& data, const GgufKind& kind, Json& out) {
  Json cuts = Json::array();
  for (const std::string& split : kind.splits)
    cuts.push_back({{"type", "Split"},
                    {"pattern", {{"Regex", split}}},
                    {"behavior", "Isolated"},
                    {"invert", false}});
  cuts.push_back(byte_level_json(false));
  out["pre_tokenizer"] = in_sequence("pretokenizers", std::move(cuts));
  out["decoder"] = byte_level_json(true);
  out["model"] = bpe_json(vocabulary_json(data.tokens), merges_json(data));
  out["model"]["ignore_merges"] = kind.ignore_merges;
}

// All merges of two tokens to a token, by the score of the result. Text never forms a special token
// or a byte token.
Json merges_of_scores(const GgufTokenizerData& data) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < data.tokens.size(); ++id)
    if (data.token_types.empty() || data.token_types[id] == kNormal)
      ids.emplace(data.tokens[id], id);
  struct Merge {
    float score;
    size_t made, left, right;
  };
  std::vector<Merge> all;
  for (const auto& [token, id] : ids) {
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut)), right = ids.find(token.substr(cut));
      if (left != ids.end() && right != ids.end())
        all.push_back({data.scores[id], id, left->second, right->second});
    }
  }
  std::sort(all.begin(), all.end(), [](const Merge& a, const Merge& b) {
    return std::tie(b.score, a.made, a.left, a.right) < std::tie(a.score, b.made, b.left, b.right);
  });
  Json merges = Json::array();
  for (const Merge& merge : all)
    merges.push_back({data.tokens[merge.left], data.tokens[merge.right]});
  return merges;
}

// BPE of tokens whose spaces are marked, with byte fallback.
void set_marked_bpe(const GgufTokenizerData& data, bool prefix_space, Json merges, Json& out) {
  Json steps = Json::array();
  if (prefix_space) steps.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}});
  out["normalizer"] = in_sequence("normalizers", std::move(steps));
  Json back = {{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
               {{"type", "ByteFallback"}},
               {{"type", "Fuse"}}};
  if (prefix_space)
    back.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  out["decoder"] = in_sequence("decoders", std::move(back));
  Json& model = out["model"] = bpe_json(vocabulary_json(data.tokens), std::move(merges));
  if (data.unk_id) model["unk_token"] = token_of(data, *data.unk_id);
  model["fuse_unk"] = true;
  model["byte_fallback"] = true;
}

// Spaces as words begin, once where several stand together; the character map before that.
void set_unigram(const GgufTokenizerData& data, const Tokenizer& tokenizer, Json& out) {
  const bool prefix = data.add_space_prefix.value_or(false),
             merge = data.remove_extra_whitespaces.value_or(false);
  Json steps = Json::array();
  if (!data.precompiled_charsmap.empty())
    steps.push_back(
        {{"type", "Precompiled"}, {"precompiled_charsmap", base64(data.precompiled_charsmap)}});
  if (merge) {
    steps.push_back({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
    steps.push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}});
  }
  out["normalizer"] = in_sequence("normalizers", std::move(steps));
  out["pre_tokenizer"] = out["decoder"] = {{"type", "Metaspace"},
                                           {"replacement", kSpaceMark},
                                           {"prepend_scheme", prefix ? "always" : "never"},
                                           {"split", false}};
  Json vocab = Json::array();
  for (size_t id = 0; id < data.tokens.size(); ++id)
    vocab.push_back({data.tokens[id], data.scores[id]});
  out["model"] = {{"type", "Unigram"},
                  {"unk_id", tokenizer.unk() ? Json(*tokenizer.unk()) : Json()},
                  {"vocab", std::move(vocab)},
                  {"byte_fallback", false}};
}

// As BERT has it: the first token, a text, the second token, and for a pair the other text and the
// second token again.
void set_word_piece(const GgufTokenizerData& data, const Tokenizer& tokenizer, Json& out) {
  out["normalizer"] = {{"type", "BertNormalizer"},
                       {"clean_text", true},
                       {"handle_chinese_chars", true},
                       {"strip_accents", nullptr},
                       {"lowercase", data.lowercase.value_or(true)}};
  if (data.strip_accents) out["normalizer"]["strip_accents"] = *data.strip_accents;
  out["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  out["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  out["model"] = {{"type", "WordPiece"},
                  {"unk_token", token_of(data, *tokenizer.unk())},
                  {"continuing_subword_prefix", "##"},
                  {"max_input_chars_per_word", 100},
                  {"vocab", vocabulary_json(data.tokens)}};
  const std::vector<int32_t> around = tokenizer.surround({});
  const auto pair = [&](int32_t id) -> Json { return {token_of(data, id), id}; };
  out["post_processor"] = {
      {"type", "BertProcessing"}, {"sep", pair(around.back())}, {"cls", pair(around.front())}};
}

std::string word_piece_config(const GgufTokenizerData& data, const Tokenizer& tokenizer) {
  const std::vector<int32_t> around = tokenizer.surround({});
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"cls_token", token_of(data, around.front())},
                 {"sep_token", token_of(data, around.back())},
                 {"unk_token", token_of(data, *tokenizer.unk())},
                 {"pad_token", token_of(data, *tokenizer.pad())}};
  if (tokenizer.id("[MASK]")) config["mask_token"] = "[MASK]";
  return config.dump(2) + "\n";
}

// Special tokens around a text and a pair.
Json surroundings(const GgufTokenizerData& data, bool bos, bool eos) {
  if (!bos && !eos) return nullptr;
  Json specials = Json::object(), single = Json::array(), pair = Json::array();
  const auto special = [&](int64_t id, int type) -> Json {
    const std::string token = token_of(data, id);
    specials[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
    return {{"SpecialToken", {{"id", token}, {"type_id", type}}}};
  };
  for (const int type : {0, 1}) {
    Json one = Json::array();
    if (bos) one.push_back(special(*data.bos_id, type));
    one.push_back({{"Sequence", {{"id", type == 0 ? "A" : "B"}, {"type_id", type}}}});
    if (eos) one.push_back(special(*data.eos_id, type));
    if (type == 0) single = one;
    pair.insert(pair.end(), one.begin(), one.end());
  }
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(specials)}};
}

std::string config_of(const GgufTokenizerData& data, bool bos, bool eos) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false},
                 {"add_bos_token", bos},
                 {"add_eos_token", eos}};
  for (const auto& [key, id] : {std::pair{"bos_token", data.bos_id},
                                {"eos_token", data.eos_id},
                                {"unk_token", data.unk_id},
                                {"pad_token", data.pad_id}})
    if (id) config[key] = token_of(data, *id);
  // of files whose texts end with another token than answers, eos_token is that of answers
  if (eos && data.eot_id) config["eos_token"] = token_of(data, *data.eot_id);
  if (!data.tool_template.empty() && data.tool_template != data.chat_template)
    config["chat_template"] = {{{"name", "default"}, {"template", data.chat_template}},
                               {{"name", "tool_use"}, {"template", data.tool_template}}};
  else if (!data.chat_template.empty())
    config["chat_template"] = data.chat_template;
  return config.dump(2) + "\n";
}

}  // namespace

TokenizerJson tokenizer_json_of(GgufTokenizerData data, const std::string& where) {
  const Tokenizer tokenizer = tokenizer_from_gguf(data, where);
  const GgufKind kind = gguf_kind(data, where);
  const bool word_piece = kind.kind == "word_piece";
  if (word_piece) to_word_pieces(data);
  // with the defaults of the type
  data.bos_id = tokenizer.bos(), data.eos_id = tokenizer.eos();
  data.unk_id = tokenizer.unk(), data.pad_id = tokenizer.pad();
  if (data.eot_id && (*data.eot_id < 0 || *data.eot_id >= std::ssize(data.tokens)))
    data.eot_id.reset();
  const bool bos = data.add_bos.value_or(kind.add_bos) && data.bos_id,
             eos = data.add_eos.value_or(kind.add_eos) && data.eos_id;
  check_told_apart(data, where);
  Json out = empty_tokenizer_json(added_tokens_json(data));
  out["post_processor"] = surroundings(data, bos, eos);
  if (kind.kind == "byte_level")
    set_byte_level(data, kind, out);
  else if (kind.kind == "scores")
    set_marked_bpe(data, data.add_space_prefix.value_or(true), merges_of_scores(data), out);
  else if (kind.kind == "merges")
    set_marked_bpe(data, false, merges_json(data), out);
  else if (kind.kind == "unigram")
    set_unigram(data, tokenizer, out);
  else if (word_piece)
    set_word_piece(data, tokenizer, out);
  else
    fail(ErrorKind::file, where,
         "a tokenizer of kind {}; tokenizer.json is written of BPE, Unigram and WordPiece",
         kind.kind);
  return {out.dump(1) + "\n",
          word_piece ? word_piece_config(data, tokenizer) : config_of(data, bos, eos)};
}

}  // namespace tessera::text
