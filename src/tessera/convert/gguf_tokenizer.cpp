#include "tessera/convert/gguf_tokenizer.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/base64.h"
#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/format/file_source.h"
#include "tessera/format/is_gguf.h"
#include "tessera/spec/json.h"
#include "tessera/text/tokenizer_files/sentence_piece.h"
#include "tessera/text/tokenizer/added_tokens.h"
#include "tessera/text/tokenizer/byte_level.h"
#include "tessera/text/tokenizer_files/gguf_tokenizer.h"
#include "tessera/text/tokenizer_files/gguf_tokenizer_json.h"
#include "tessera/text/tokenizer_files/rank_file.h"
#include "tessera/text/tokenizer_files/tokenizer_json.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;
using format::GgufEntry;
using format::GgufValue;
using format::in_quotes;
using spec::Json;
using text::GgufTokenizerData;

constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

/// What tokenizers differ in: contractions in either case, runs of digits, spaces and line ends of
/// every kind, scripts with and without spaces, marks, signs, code.
constexpr const char* kProbes[] = {
    "Hello world! It's we'LL they'Ve I'd, don't; can\u2019t.",
    "  two spaces,   three,\ttab\n\nlines\r\n  indented\n \n\n\n end  ",
    "1 12 123 1234 12345 123456 1234567 3.14159 1,000,000 0xDEADBEEF \u0663\u0664\u0665 x2y3",
    "caf\u00e9 na\u00efve \u00dcber STRASSE stra\u00dfe \u0130stanbul e\u0301 "
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! "
    "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac "
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f\u4e16\u754c "
    "\ud55c\uad6d\uc5b4 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 "
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001F600\U0001F680 \U0001F468\u200D\U0001F469\u200D\U0001F467 \u2603\uFE0F \u00bd "
    "\u2126 \u2192 ===>>> <|x|> </s> [INST] {\"a\": [1, 2]} $x^2 + y_1 ~ `q` "
    "a/b\\c #include <stdio.h> && || !! ?? ...",
    "for (int i=0;i<10;++i){\n\tprintf(\"%d\\n\", i);\n}\n",
    "'s 't 're 've 'm 'll 'd 'S 'T",
    " ",
    "a",
    "A\u00a0B\u2003C\u200bD"};

bool cuts_alike(const text::Tokenizer& a, const text::Tokenizer& b, std::string_view probe) {
  for (const bool special : {false, true})
    if (a.encode(probe, {.add_special = special}) != b.encode(probe, {.add_special = special}))
      return false;
  return true;
}

bool cuts_alike(const text::Tokenizer& a, const text::Tokenizer& b) {
  return std::all_of(std::begin(kProbes), std::end(kProbes),
                     [&](const char* probe) { return cuts_alike(a, b, probe); });
}

std::vector<GgufEntry> entries_of(const fs::path& gguf) {
  const format::GgufFile file = format::open_gguf(gguf);
  std::vector<GgufEntry> entries;
  for (const GgufEntry& entry : file.metadata.entries())
    if (entry.key.starts_with("tokenizer.")) entries.push_back(entry);
  return entries;
}

/// The parts of a tokenizer.json that GGUF metadata have too.
class JsonTokenizer {
 public:
  JsonTokenizer(const fs::path& path, const text::Tokenizer& tokenizer, int64_t vocab)
      : where_(path.string()), json_(spec::parse_json(read_text_file(path), where_)), data_{} {
    const Json& model = member(json_, "model");
    // old files do not say their type; only BPE has merges
    const std::string type = model.value("type", model.contains("merges") ? "BPE" : "Unigram");
    unigram_ = type == "Unigram";
    if (type != "BPE" && !unigram_)
      fail(ErrorKind::file, where_,
           "a tokenizer of kind {}; GGUF files hold BPE, Unigram and WordPiece among what tessera "
           "writes",
           in_quotes(type));
    data_.tokens.resize(static_cast<size_t>(vocab));
    data_.token_types.assign(static_cast<size_t>(vocab), kUnused);
    byte_fallback_ = model.value("byte_fallback", false);
    if (unigram_) {
      unigram(model);
    } else {
      for (const auto& [token, id] : member(model, "vocab").items()) put(token, id, kNormal);
      merges(model);
    }
    // with those that only the files next to it name
    for (const text::AddedToken& added : tokenizer.added_tokens())
      put(added.content, added.id, added.special ? kControl : kUserDefined);
    if (data_.unk_id) data_.token_types[static_cast<size_t>(*data_.unk_id)] = kUnknown;
    // names that no other token has
    for (size_t id = 0; id < data_.tokens.size(); ++id)
      if (data_.token_types[id] == kUnused) data_.tokens[id] = fmt::format("[PAD{}]", id);
  }

  GgufTokenizerData data() const { return data_; }
  bool byte_fallback() const { return byte_fallback_; }
  bool unigram() const { return unigram_; }

  /// As tokens with scores: those that merge first score highest.
  GgufTokenizerData with_scores(std::optional<int32_t> unk) const {
    GgufTokenizerData data = data_;
    std::map<std::string, float> score;
    float next = 0;
    for (const std::string& merge : data.merges) {
      const size_t space = merge.find(' ', 1);
      std::string token = merge;
      token.erase(space, 1);
      if (score.emplace(token, next).second) next -= 1;
    }
    for (size_t id = 0; id < data.tokens.size(); ++id) {
      const std::string& token = data.tokens[id];
      const auto found = score.find(token);
      // letters alone are never merged into
      data.scores.push_back(found != score.end()              ? found->second
                            : data.token_types[id] == kNormal ? next - 1
                                                              : 0);
      if (token.size() == 6 && token.starts_with("<0x") && token.ends_with(">"))
        data.token_types[id] = kByte;
    }
    if (unk) data.token_types[static_cast<size_t>(*unk)] = kUnknown;
    data.merges.clear();
    data.model = text::gguf_tokenizer_model("scores");
    data.pre = "default";
    return data;
  }

 private:
  const Json& member(const Json& object, const char* key) const {
    if (!object.is_object() || !object.contains(key))
      fail(ErrorKind::file, where_, "there is no {}", in_quotes(key));
    return object.at(key);
  }
  void put(const std::string& token, const Json& id, int32_t type) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() >= std::ssize(data_.tokens))
      fail(ErrorKind::file, where_, "token {} has id {}; the model has {} rows", in_quotes(token),
           id.dump(), data_.tokens.size());
    const auto at = id.get<size_t>();
    data_.tokens[at] = token;
    data_.token_types[at] = type;
  }
  void unigram(const Json& model) {
    const Json& list = member(model, "vocab");
    // as the converter of llama.cpp scores what a vocabulary lacks
    data_.scores.assign(data_.tokens.size(), -10000);
    for (size_t id = 0; id < list.size(); ++id) {
      put(list[id][0].get<std::string>(), Json(id), kNormal);
      data_.scores[id] = list[id][1].get<float>();
    }
    if (const Json unk = model.value("unk_id", Json()); unk.is_number_integer())
      data_.unk_id = unk.get<int64_t>();
    const auto normalizer = json_.find("normalizer");
    if (const Json* map = normalizer == json_.end() ? nullptr : charsmap_of(*normalizer))
      data_.precompiled_charsmap = bytes_of_base64(map->get<std::string>()).value();
    data_.model = text::gguf_tokenizer_model("unigram");
    data_.pre = "default";
  }
  // the first character map among normalizers
  static const Json* charsmap_of(const Json& normalizer) {
    if (!normalizer.is_object()) return nullptr;
    if (normalizer.contains("precompiled_charsmap")) return &normalizer["precompiled_charsmap"];
    if (normalizer.contains("normalizers"))
      for (const Json& part : normalizer["normalizers"])
        if (const Json* map = charsmap_of(part)) return map;
    return nullptr;
  }
  void merges(const Json& model) {
    for (const Json& merge : member(model, "merges")) {
      if (merge.is_string())
        data_.merges.push_back(merge.get<std::string>());
      else if (merge.is_array() && merge.size() == 2)
        data_.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
      else
        fail(ErrorKind::file, where_, "a merge is {}; expected two tokens", merge.dump());
    }
  }

  std::string where_;
  Json json_;
  GgufTokenizerData data_;
  bool byte_fallback_ = false;
  bool unigram_ = false;
};

/// Which tokens a file of GGUF puts around a text: its bos and its eos. Where the tokenizer ends a
/// text with another token than an answer, as Qwen3-Embedding does, that one is eos, and the end of
/// an answer is the end of a turn (eot), as llama.cpp's converter writes it.
void set_surroundings(const text::Tokenizer& tokenizer, GgufTokenizerData& data) {
  constexpr int32_t kText = -1;
  const std::vector<int32_t> around = tokenizer.surround(std::vector{kText});
  const auto text = std::find(around.begin(), around.end(), kText);
  const bool before = text == around.begin() + 1, behind = std::end(around) - text == 2;
  data.add_bos = before;
  data.add_eos = behind;
  if (before) data.bos_id = around.front();
  if (!behind || tokenizer.eos() == around.back()) return;
  data.eot_id = tokenizer.eos();
  data.eos_id = around.back();
}

/// What llama2.c's files of tokens say.
GgufTokenizerData data_of(const text::Tokenizer& tokenizer, const JsonTokenizer& json) {
  GgufTokenizerData data =
      json.byte_fallback() && !json.unigram() ? json.with_scores(tokenizer.unk()) : json.data();
  data.bos_id = tokenizer.bos();
  data.eos_id = tokenizer.eos();
  if (tokenizer.unk()) data.unk_id = tokenizer.unk();
  data.pad_id = tokenizer.pad();
  set_surroundings(tokenizer, data);
  data.chat_template = tokenizer.chat_template();
  if (tokenizer.tool_template() != tokenizer.chat_template())
    data.tool_template = tokenizer.tool_template();
  return data;
}

std::vector<GgufEntry> entries_of(const GgufTokenizerData& data) {
  std::vector<GgufEntry> entries;
  const auto add = [&](const char* key, GgufValue value) {
    entries.push_back({fmt::format("tokenizer.ggml.{}", key), std::move(value)});
  };
  add("model", GgufValue::string(data.model));
  add("pre", GgufValue::string(data.pre));
  add("tokens", GgufValue::strings(data.tokens));
  if (!data.scores.empty()) add("scores", GgufValue::array(std::span<const float>(data.scores)));
  add("token_type", GgufValue::array(std::span<const int32_t>(data.token_types)));
  if (!data.merges.empty()) add("merges", GgufValue::strings(data.merges));
  for (const auto& [key, id] : {std::pair{"bos_token_id", data.bos_id},
                                {"eos_token_id", data.eos_id},
                                {"unknown_token_id", data.unk_id},
                                {"padding_token_id", data.pad_id},
                                {"cls_token_id", data.cls_id},
                                {"seperator_token_id", data.sep_id},
                                {"eot_token_id", data.eot_id}})
    if (id) add(key, GgufValue::number(static_cast<uint32_t>(*id)));
  add("add_bos_token", GgufValue::number(data.add_bos.value_or(false)));
  add("add_eos_token", GgufValue::number(data.add_eos.value_or(false)));
  for (const auto& [key, said] : {std::pair{"add_space_prefix", data.add_space_prefix},
                                  {"normalizer.lowercase", data.lowercase},
                                  {"normalizer.strip_accents", data.strip_accents}})
    if (said) add(key, GgufValue::number(*said));
  if (data.remove_extra_whitespaces)
    add("remove_extra_whitespaces", GgufValue::number(*data.remove_extra_whitespaces));
  if (const std::string& map = data.precompiled_charsmap; !map.empty())
    add("precompiled_charsmap",
        GgufValue::array(std::span(reinterpret_cast<const uint8_t*>(map.data()), map.size())));
  if (!data.chat_template.empty())
    entries.push_back({"tokenizer.chat_template", GgufValue::string(data.chat_template)});
  if (!data.tool_template.empty())
    entries.push_back({"tokenizer.chat_template.tool_use", GgufValue::string(data.tool_template)});
  return entries;
}

/// Spaces as SentencePiece writes them.
std::string with_marked_spaces(std::string_view token) {
  std::string out;
  for (const char c : token) out += c == ' ' ? std::string("\u2581") : std::string(1, c);
  return out;
}

/// The token for unknown words where the file's model is WordPiece.
std::optional<int32_t> word_piece_unk(const text::Tokenizer& tokenizer, const fs::path& file) {
  if (file.filename() == "vocab.txt") return tokenizer.unk();
  if (file.filename() != "tokenizer.json") return std::nullopt;
  const Json model = spec::parse_json(read_text_file(file), file.string()).at("model");
  if (model.value("type", "") != "WordPiece") return std::nullopt;
  return tokenizer.id(model.value("unk_token", "[UNK]"));
}

bool is_plain_word(std::string_view token) {
  return !token.empty() && std::all_of(token.begin(), token.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
  });
}

/// Each token alone, in capitals, within another word, where an added token would be found, after
/// a token that begins a word, also with a control character between them, and a word of more
/// characters than BERT takes.
std::string probe_of(const std::vector<std::string>& tokens) {
  constexpr std::string_view kContinuing = "##";
  constexpr size_t kLongWord = 150;
  std::string first = "x", next = "x";
  const auto take_plain = [&](std::string& word, bool continuing) {
    for (std::string_view token : tokens) {
      if (token.starts_with(kContinuing) != continuing) continue;
      if (continuing) token.remove_prefix(kContinuing.size());
      if (!is_plain_word(token)) continue;
      word = token;
      return;
    }
  };
  take_plain(first, false);
  take_plain(next, true);
  std::string probe = first;
  while (probe.size() < kLongWord) probe += next;
  for (std::string_view token : tokens) {
    if (token.starts_with(kContinuing)) token.remove_prefix(kContinuing.size());
    std::string capitals(token);
    for (char& c : capitals)
      if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    probe += fmt::format(" {0} {1} x{0}x {2}{0} {2}\u200b{0}", token, capitals, first);
  }
  return probe;
}

/// WordPiece as llama.cpp cuts it: between two tokens that are always there, lower case or not,
/// with accents or not, and otherwise as BERT does.
std::vector<GgufEntry> word_piece_entries(const text::Tokenizer& original,
                                          int32_t unk,
                                          int64_t vocab,
                                          const std::string& where) {
  const std::vector<int32_t> around = original.surround({});
  if (around.size() != 2)
    fail(ErrorKind::file, where,
         "{} special tokens surround a text; GGUF files of WordPiece have one before it and one "
         "after it",
         around.size());
  GgufTokenizerData data;
  data.model = text::gguf_tokenizer_model("word_piece");
  data.pre = "default";
  std::set<std::string> seen;
  std::vector<std::string> normal;
  for (int32_t id = 0; id < vocab; ++id) {
    // ids without a token have names that no other token has
    const bool special = original.is_special(id), known = special || original.bytes_of(id);
    const std::string text = known ? std::string(original.token(id)) : fmt::format("[PAD{}]", id);
    if (known && !special) normal.push_back(text);
    data.tokens.push_back(special ? text : text::gguf_word_piece(text));
    data.token_types.push_back(!known ? kUnused : special ? kControl : kNormal);
    if (!seen.insert(data.tokens.back()).second)
      fail(ErrorKind::file, where, "token {} is written {} in GGUF files, as another one is",
           in_quotes(text), in_quotes(data.tokens.back()));
  }
  data.bos_id = data.cls_id = around.front();
  data.eos_id = data.sep_id = around.back();
  data.unk_id = unk;
  data.pad_id = original.pad();
  data.add_bos = data.add_eos = true;
  const std::string probe = probe_of(normal);
  for (const bool lowercase : {true, false})
    for (const bool strip : {lowercase, !lowercase}) {
      data.lowercase = lowercase;
      data.strip_accents = strip;
      const text::Tokenizer said = tokenizer_from_gguf(data, where);
      if (cuts_alike(original, said) && cuts_alike(original, said, probe)) return entries_of(data);
    }
  fail(
      ErrorKind::file, where,
      "cuts text otherwise than BERT does, lower case or not, with accents or not; GGUF files have "
      "no other WordPiece");
}

/// A model of sentencepiece, with the tokens that the files next to it add.
std::vector<GgufEntry> sentence_piece_entries(const text::Tokenizer& original,
                                              const fs::path& file,
                                              int64_t vocab) {
  const std::string where = file.string();
  GgufTokenizerData data =
      text::gguf_data_of(text::read_sentence_piece(MappedFile::open(file)->bytes(), where));
  for (auto id = static_cast<int32_t>(data.tokens.size()); id < vocab; ++id) {
    const bool known = original.has(id);
    data.tokens.push_back(known ? std::string(original.token(id)) : fmt::format("[PAD{}]", id));
    data.token_types.push_back(!known                    ? kUnused
                               : original.is_special(id) ? kControl
                                                         : kUserDefined);
    data.scores.push_back(0);
  }
  // rows of the table that the model has not
  if (vocab > 0 && std::ssize(data.tokens) > vocab)
    fail(ErrorKind::file, where, "{} tokens; the model has {}", data.tokens.size(), vocab);
  data.bos_id = original.bos();
  data.eos_id = original.eos();
  data.pad_id = original.pad();
  set_surroundings(original, data);
  data.chat_template = original.chat_template();
  if (original.tool_template() != original.chat_template())
    data.tool_template = original.tool_template();
  if (!cuts_alike(original, tokenizer_from_gguf(data, where)))
    fail(ErrorKind::file, where,
         "normalizes text in a way that GGUF files do not name; expected a tokenizer.json");
  return entries_of(data);
}

}  // namespace

std::vector<GgufEntry> gguf_tokenizer_entries(const fs::path& path, int64_t vocab) {
  const fs::path own = fs::is_directory(path) ? path / "tokenizer.gguf" : path;
  if (fs::is_regular_file(own) && format::is_gguf(own)) return entries_of(own);
  const text::Tokenizer original = find_tokenizer(path, static_cast<int32_t>(vocab));
  const auto file = fs::is_directory(path) ? text::tokenizer_file_in(path).value_or(path) : path;
  const std::string where = file.string();
  if (const auto unk = word_piece_unk(original, file))
    return word_piece_entries(original, *unk, vocab, where);
  if (file.extension() == ".model") return sentence_piece_entries(original, file, vocab);
  if (file.filename() != "tokenizer.json")
    fail(
        ErrorKind::file, where,
        "has no form in GGUF files; expected a tokenizer.json, a vocab.txt, a tokenizer.model or a "
        "GGUF file");
  const JsonTokenizer json(file, original, vocab);
  GgufTokenizerData data = data_of(original, json);
  const auto fits = [&] { return cuts_alike(original, tokenizer_from_gguf(data, where)); };
  if (json.unigram()) {
    for (const bool merge : {true, false})
      for (const bool prefix : {true, false}) {
        data.remove_extra_whitespaces = merge;
        data.add_space_prefix = prefix;
        if (fits()) return entries_of(data);
      }
  } else if (json.byte_fallback()) {
    for (const bool prefix : {true, false}) {
      data.add_space_prefix = prefix;
      if (fits()) return entries_of(data);
    }
  } else {
    data.model = text::gguf_tokenizer_model("byte_level");
    for (const std::string& pre : text::gguf_pre_tokenizers()) {
      data.pre = pre;
      if (fits()) return entries_of(data);
    }
  }
  fail(ErrorKind::file, where,
       "no kind of tokenizer that GGUF files name cuts text as this one does");
}

namespace {

/// Writes tokenizer.json and its config where they cut as `wanted` does; returns why not, or "".
std::string write_tokenizer_json(const GgufTokenizerData& data,
                                 const text::Tokenizer& wanted,
                                 const fs::path& folder) {
  try {
    const text::TokenizerJson json = text::tokenizer_json_of(data, "the tokenizer");
    if (!cuts_alike(wanted,
                    text::tokenizer_from_json(json.tokenizer, "tokenizer.json", {json.config})))
      return "BPE by its scores cuts a text in another way";
    write_file_atomically(folder / "tokenizer.json", json.tokenizer);
    write_file_atomically(folder / "tokenizer_config.json", json.config);
    return "";
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::file) throw;
    return error.what();
  }
}

/// The bytes of a text, each a token of byte-level BPE that never merges.
GgufTokenizerData data_of_bytes() {
  GgufTokenizerData data;
  data.model = text::gguf_tokenizer_model("byte_level");
  data.pre = "gpt-2";
  const auto& characters = text::byte_characters();
  data.tokens.assign(characters.begin(), characters.end());
  data.token_types.assign(data.tokens.size(), kNormal);
  return data;
}

/// A file of token scores (text/tokenizer_files/score_file.h), which has been read before.
GgufTokenizerData data_of_scores(std::span<const std::byte> file) {
  GgufTokenizerData data;
  data.model = text::gguf_tokenizer_model("scores");
  data.pre = "default";
  data.unk_id = 0, data.bos_id = 1, data.eos_id = 2;
  data.add_bos = true;
  constexpr size_t kFirstByte = 3, kFirstPiece = 259;
  format::ByteReader reader(file, {"tokenizer", "tokenizer.bin"});
  reader.read<int32_t>("the longest token");
  while (reader.remaining() > 0) {
    const size_t id = data.tokens.size();
    data.scores.push_back(reader.read<float>("a score"));
    const auto length = reader.read<uint32_t>("a length");
    std::string token(format::text_of(reader.take(length, "a token")));
    if (id >= kFirstPiece) token = with_marked_spaces(token);
    if (id >= kFirstByte && id < kFirstPiece) token = fmt::format("<0x{:02X}>", id - kFirstByte);
    data.tokens.push_back(id == 0   ? "<unk>"
                          : id == 1 ? "<s>"
                          : id == 2 ? "</s>"
                                    : std::move(token));
    data.token_types.push_back(id == 0            ? kUnknown
                               : id < kFirstByte  ? kControl
                               : id < kFirstPiece ? kByte
                                                  : kNormal);
  }
  return data;
}

}  // namespace

std::string copy_tokenizer_to_hf(const format::GgufFile& from, const fs::path& folder) {
  const auto data = tokenizer_data_of(from);
  if (!data) return "";
  const std::string why =
      write_tokenizer_json(*data, tokenizer_from_gguf(*data, "the GGUF file"), folder);
  if (!why.empty()) write_tokenizer_gguf(from, folder);
  return why;
}

std::string copy_tokenizer_to_hf(const fs::path& from, const fs::path& folder) {
  if (from == "bytes")
    return write_tokenizer_json(data_of_bytes(), find_tokenizer("bytes"), folder);
  if (const auto file = fs::is_directory(from) ? text::tokenizer_file_in(from) : from;
      file && fs::is_regular_file(*file)) {
    const auto mapped = MappedFile::open(*file);
    if (const std::string_view text = format::text_of(mapped->bytes()); text::is_rank_file(text))
      return write_tokenizer_json(text::read_rank_file(text, file->string()), find_tokenizer(*file),
                                  folder);
  }
  if (fs::is_directory(from) && text::tokenizer_file_in(from) &&
      text::tokenizer_file_in(from)->filename() != "tokenizer.bin") {
    copy_tokenizer(from, folder);
    return "";
  }
  for (const char* name : {"tokenizer.gguf", "tokenizer.bin"}) {
    const fs::path file = fs::is_directory(from) ? from / name : from;
    if (!fs::is_regular_file(file)) continue;
    const auto mapped = MappedFile::open(file);
    const std::string_view text = format::text_of(mapped->bytes());
    if (format::is_gguf(text)) return copy_tokenizer_to_hf(format::open_gguf(file), folder);
    if (text::tokenizer_file_name(std::string(text)) != std::string_view("tokenizer.bin")) break;
    const std::string why =
        write_tokenizer_json(data_of_scores(mapped->bytes()), find_tokenizer(file), folder);
    if (!why.empty()) copy_tokenizer(file, folder);
    return why;
  }
  copy_tokenizer(from, folder);
  return "";
}

}  // namespace tessera::convert
