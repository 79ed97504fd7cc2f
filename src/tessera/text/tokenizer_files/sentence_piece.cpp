#include "tessera/text/tokenizer_files/sentence_piece.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <limits>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/sentencepiece_bpe.h"
#include "tessera/text/tokenizer_files/tokenizer_config.h"
#include "tessera/text/tokenizer/tokenizer_parts.h"
#include "tessera/text/tokenizer/unigram_model.h"
#include "tessera/text/tokenizer_files/vocab_merges.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

using spec::Json;

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, how a space is written
// as many spaces as a text has at an end
constexpr size_t kAny = std::numeric_limits<size_t>::max();
enum PieceType : int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

/// The fields of a protobuf message, in order. Groups, which no file has, are refused.
class Message {
 public:
  Message(std::span<const std::byte> bytes, const std::string& where)
      : bytes_(bytes), where_(where) {}

  /// False at the end.
  bool next() {
    if (bytes_.empty()) return false;
    const uint64_t key = varint();
    field_ = key >> 3;
    wire_ = static_cast<int>(key & 7);
    if (field_ == 0) bad("field number 0");
    number_ = 0;
    data_ = {};
    switch (wire_) {
      case 0:
        number_ = varint();
        break;
      case 1:
        data_ = take(8);
        break;
      case 2:
        data_ = take(varint());
        break;
      case 5:
        data_ = take(4);
        break;
      default:
        bad("a field of an unknown wire type");
    }
    return true;
  }
  uint64_t field() const { return field_; }
  std::span<const std::byte> bytes() const { return expect(2), data_; }
  std::string text() const {
    return {reinterpret_cast<const char*>(bytes().data()), bytes().size()};
  }
  int64_t integer() const { return expect(0), static_cast<int64_t>(number_); }
  bool flag() const { return integer() != 0; }
  float number() const {
    expect(5);
    uint32_t bits = 0;  // little endian
    for (size_t i = 0; i < 4; ++i) bits |= std::to_integer<uint32_t>(data_[i]) << (8 * i);
    return std::bit_cast<float>(bits);
  }

 private:
  [[noreturn]] void bad(const char* what) const {
    fail(ErrorKind::file, where_, "{}; expected a model of sentencepiece, whole", what);
  }
  void expect(int wire) const {
    if (wire_ != wire) bad("a field of another type");
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = std::to_integer<uint64_t>(take(1)[0]);
      value |= (byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    bad("a number of more than 64 bits");
  }
  std::span<const std::byte> take(uint64_t n) {
    if (n > bytes_.size()) bad("the file ends within a field");
    const auto part = bytes_.first(static_cast<size_t>(n));
    bytes_ = bytes_.subspan(static_cast<size_t>(n));
    return part;
  }

  std::span<const std::byte> bytes_, data_;
  const std::string& where_;
  uint64_t field_ = 0, number_ = 0;
  int wire_ = 0;
};

void read_piece(std::span<const std::byte> bytes,
                const std::string& where,
                SentencePieceModel& model) {
  std::string piece;
  float score = 0;
  int64_t type = kNormal;
  for (Message message(bytes, where); message.next();) {
    if (message.field() == 1) piece = message.text();
    if (message.field() == 2) score = message.number();
    if (message.field() == 3) type = message.integer();
  }
  const size_t id = model.pieces.size();
  if (piece.empty() || !is_valid_utf8(piece))
    fail(ErrorKind::file, where, "piece {} is {}; expected a text in UTF-8", id,
         piece.empty() ? "empty" : "not UTF-8");
  if (type < kNormal || type > kByte)
    fail(ErrorKind::file, where, "piece {} has type {}; expected 1 to 6", id, type);
  model.pieces.push_back(std::move(piece));
  model.scores.push_back(score);
  model.types.push_back(static_cast<int32_t>(type));
}

/// Names of the special pieces in the library.
struct SpecialNames {
  std::string bos = "<s>", eos = "</s>", pad = "<pad>";
};

void read_trainer(std::span<const std::byte> bytes,
                  const std::string& where,
                  SentencePieceModel& model,
                  SpecialNames& names) {
  constexpr int64_t kUnigram = 1, kBpe = 2;
  int64_t kind = kUnigram;
  for (Message message(bytes, where); message.next();) switch (message.field()) {
      case 3:
        kind = message.integer();
        break;
      case 24:
        if (message.flag())
          fail(ErrorKind::file, where,
               "treat_whitespace_as_suffix is not supported; expected a model without, or a "
               "tokenizer.json");
        break;
      case 35:
        model.byte_fallback = message.flag();
        break;
      case 46:
        names.bos = message.text();
        break;
      case 47:
        names.eos = message.text();
        break;
      case 48:
        names.pad = message.text();
        break;
      default:
        break;
    }
  if (kind != kUnigram && kind != kBpe)
    fail(ErrorKind::file, where,
         "model_type {} (3 = word, 4 = char); expected 1 or 2 (unigram, bpe)", kind);
  model.bpe = kind == kBpe;
}

void read_normalizer(std::span<const std::byte> bytes,
                     const std::string& where,
                     SentencePieceModel& model) {
  for (Message message(bytes, where); message.next();) switch (message.field()) {
      case 2:
        model.charsmap = message.text();
        break;
      case 3:
        model.add_dummy_prefix = message.flag();
        break;
      case 4:
        model.remove_extra_whitespaces = message.flag();
        break;
      case 5:
        if (!message.flag())
          fail(ErrorKind::file, where,
               "escape_whitespaces is off, which is not supported; expected a model with it");
        break;
      default:
        break;
    }
}

void find_special(SentencePieceModel& model, const SpecialNames& names, const std::string& where) {
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto number = static_cast<int32_t>(id);
    if (model.types[id] == kUnknown) {
      if (model.unk) fail(ErrorKind::file, where, "two unknown pieces; expected one");
      model.unk = number;
    }
    if (model.types[id] != kControl) continue;
    for (const auto& [name, role] :
         {std::pair{&names.bos, &model.bos}, {&names.eos, &model.eos}, {&names.pad, &model.pad}})
      if (model.pieces[id] == *name) *role = number;
  }
  if (!model.unk) fail(ErrorKind::file, where, "no unknown piece; expected one");
}

/// Spaces as the library writes them: U+2581, one before the text, and with `merge` none at its
/// ends and one between words.
class Spaces final : public Normalizer {
 public:
  Spaces(bool prefix, bool always, bool merge) : prefix_(prefix), always_(always), merge_(merge) {}
  void apply(NormalizedText& text) const override {
    std::string_view in = text.text;
    if (merge_) in.remove_prefix(std::min(in.find_first_not_of(' '), in.size()));
    std::string out;
    out.reserve(in.size() + in.size() / 2 + kSpace.size());
    if (!in.empty() && prefix_ && (always_ || text.at_start)) out += kSpace;
    bool behind_space = merge_;
    for (const char c : in) {
      if (c == ' ' && behind_space) continue;
      behind_space = c == ' ' && merge_;
      if (c == ' ')
        out += kSpace;
      else
        out += c;
    }
    while (merge_ && std::string_view(out).ends_with(kSpace))
      out.resize(out.size() - kSpace.size());
    if (out.size() > text.limit)
      fail(ErrorKind::input, "tokenizer", "the text grows to {} bytes; at most {}", out.size(),
           text.limit);
    text.text = std::move(out);
  }

 private:
  bool prefix_, always_, merge_;
};

/// Special tokens around a text for a class of transformers.
struct PieceClass {
  std::string_view name;
  bool bos = false, eos = false;
  int extra_ids = 0;  // sentinels after the pieces
};
constexpr PieceClass kPieceClasses[] = {{"Llama", true},
                                        {"CodeLlama", true},
                                        {"Gemma", true},
                                        {"BertGeneration"},
                                        {"T5", false, true, 100},
                                        {"MT5", false, true, 100}};

/// From the configuration; without a class, from the model's pieces.
PieceClass class_of(const Json& config, const SentencePieceModel& model, const std::string& where) {
  const std::string name = tokenizer_class_in(config);
  for (const PieceClass& known : kPieceClasses)
    if (known.name == name) return known;
  if (!name.empty())
    fail(ErrorKind::spec, where,
         "tokenizer_class = {} is not supported with a model of sentencepiece; expected Llama, "
         "CodeLlama, Gemma, BertGeneration, T5 or MT5, or a tokenizer.json",
         config["tokenizer_class"].dump().substr(0, 60));
  const bool bytes = std::find(model.types.begin(), model.types.end(), kByte) != model.types.end();
  return {"", bytes && model.bpe && model.bos, !model.bpe && !model.bos && model.eos};
}

/// T5's sentinels: <extra_id_0> has the last id.
void add_sentinels(int count, const Json& config, SentencePieceModel& model) {
  const Json said = config.value("extra_ids", Json());
  if (said.is_number_integer() && said >= 0 && said <= 10'000) count = said.get<int>();
  for (int i = count - 1; i >= 0; --i) {
    model.pieces.push_back(fmt::format("<extra_id_{}>", i));
    model.scores.push_back(0);
    model.types.push_back(kControl);
  }
}

std::vector<AddedToken> added_of(const SentencePieceModel& model) {
  std::vector<AddedToken> out;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const int32_t type = model.types[id];
    // in a Unigram model a user-defined piece is found by its score
    const bool found_first = model.bpe && type == kUserDefined;
    if (type != kControl && type != kUnknown && !found_first) continue;
    AddedToken token;
    token.id = static_cast<int32_t>(id);
    token.content = model.pieces[id];
    token.special = type != kUserDefined;
    out.push_back(std::move(token));
  }
  return out;
}

VocabularyPointer vocabulary_of(const SentencePieceModel& model, const std::string& where) {
  std::vector<std::pair<std::string, int64_t>> entries;
  for (const std::string& piece : model.pieces)
    entries.emplace_back(piece, static_cast<int64_t>(entries.size()));
  return std::make_shared<Vocabulary>(std::move(entries), where);
}

ModelPointer model_of(const SentencePieceModel& model, const std::string& where) {
  std::vector<bool> from_text;
  for (const int32_t type : model.types)
    from_text.push_back(type == kNormal || type == kUserDefined);
  const bool own =
      std::find(model.types.begin(), model.types.end(), kUserDefined) != model.types.end();
  if (model.bpe && own && model.remove_extra_whitespaces)
    fail(ErrorKind::file, where,
         "user-defined pieces in a BPE model with remove_extra_whitespaces are not supported; "
         "expected a tokenizer.json");
  if (model.bpe) {
    ScoreOptions options;
    options.from_text = std::move(from_text);
    options.unk = *model.unk;
    options.fuse_unknown = true;
    return make_score_model(vocabulary_of(model, where), model.scores, std::move(options), where);
  }
  UnigramOptions options;
  options.unk = *model.unk;
  options.byte_fallback = model.byte_fallback;
  options.from_text = std::move(from_text);
  std::optional<float> least, most;  // of normal pieces
  for (size_t id = 0; id < model.types.size(); ++id) {
    if (model.types[id] != kNormal) continue;
    least = std::min(least.value_or(model.scores[id]), model.scores[id]);
    most = std::max(most.value_or(model.scores[id]), model.scores[id]);
  }
  // the penalty is subtracted in float32
  if (least) options.unk_score = static_cast<double>(*least - 10.0f);
  std::vector<double> scores(model.scores.begin(), model.scores.end());
  // a user-defined piece beats any other segmentation
  for (size_t id = 0; most && id < scores.size(); ++id)
    if (model.types[id] == kUserDefined)
      scores[id] = static_cast<double>(model.pieces[id].size()) * static_cast<double>(*most) - 0.1;
  return make_unigram_model(vocabulary_of(model, where), std::move(scores), std::move(options),
                            where);
}

/// A model of pieces with the ids of another vocabulary.
class MappedPiecesModel final : public Model {
 public:
  MappedPiecesModel(ModelPointer pieces, VocabularyPointer vocabulary, int32_t unknown)
      : pieces_(std::move(pieces)), vocabulary_(std::move(vocabulary)), unknown_(unknown) {
    for (int32_t id = 0; id < pieces_->vocabulary().size(); ++id)
      ids_.push_back(of_text(pieces_->vocabulary().token(id).value_or("")));
  }
  const Vocabulary& vocabulary() const override { return *vocabulary_; }
  void encode(std::span<const Piece> pieces, std::vector<int32_t>& ids) const override {
    for (const Piece& piece : pieces) {
      if (piece.id != kNoToken) {
        ids.push_back(piece.id);
        continue;
      }
      std::string_view text = piece.text;
      std::string rest;
      if (const size_t end = code_end(piece); end > 0) {
        std::string_view code = text.substr(0, end);
        if (code.starts_with(kSpace)) code.remove_prefix(kSpace.size());
        ids.push_back(of_text(code));
        text.remove_prefix(end);
        // a text of its own
        if (!text.empty() && !text.starts_with(kSpace) && piece.text.starts_with(kSpace)) {
          rest = std::string(kSpace) + std::string(text);
          text = rest;
        }
      }
      if (text.empty()) continue;
      std::vector<int32_t> own;
      const Piece left{text, piece.at_start};
      pieces_->encode(std::span(&left, 1), own);
      for (const int32_t id : own) ids.push_back(ids_[static_cast<size_t>(id)]);
    }
  }

 private:
  int32_t of_text(std::string_view text) const {
    const int32_t id = vocabulary_->id(text);
    return id == kNoToken ? unknown_ : id;
  }
  /// Where a language code ">>...<<" ends with which the input begins, 0 without one.
  static size_t code_end(const Piece& piece) {
    constexpr std::string_view kOpen = ">>", kClose = "<<";
    const size_t begin = piece.text.starts_with(kSpace) ? kSpace.size() : 0;
    if (!piece.at_start || !piece.text.substr(begin).starts_with(kOpen)) return 0;
    const size_t close = piece.text.find(kClose, begin);
    return close == std::string_view::npos ? 0 : close + kClose.size();
  }

  ModelPointer pieces_;
  VocabularyPointer vocabulary_;
  int32_t unknown_;
  std::vector<int32_t> ids_;  // by id of the model of pieces
};

/// Normalization of a model's texts; `always`: a space before each part of a text.
NormalizerPointer normalizer_of(const SentencePieceModel& model,
                                bool prefix,
                                bool always,
                                const std::string& where) {
  std::vector<NormalizerPointer> steps;
  if (!model.charsmap.empty())
    steps.push_back(make_precompiled(Charsmap(model.charsmap, where), true));
  steps.push_back(std::make_shared<Spaces>(prefix, always, model.remove_extra_whitespaces));
  return make_sequence(std::move(steps));
}

/// One of the two tokenizers of mapped pieces.
Tokenizer side_of_mapped_pieces(std::span<const std::byte> file,
                                const std::string& where,
                                std::string_view vocab,
                                const std::string& where_vocab,
                                const TokenizerCompanions& companions,
                                std::shared_ptr<const Tokenizer> source) {
  constexpr UsualToken kUsual[] = {
      {"unk_token", "<unk>"}, {"eos_token", "</s>"}, {"pad_token", "<pad>"}};
  const SentencePieceModel model = read_sentence_piece(file, where);
  const VocabularyPointer vocabulary = read_vocabulary(spec::parse_json(vocab, where_vocab), where_vocab);
  const ConfiguredTokens configured(companions, {}, kUsual, where);
  std::vector<AddedToken> added;
  const auto special = [&](const char* role) -> std::optional<int32_t> {
    const std::string name = configured.role(role);
    const int32_t id = vocabulary->id(name);
    if (id == kNoToken) return std::nullopt;
    AddedToken token;
    token.id = id, token.content = name, token.special = true;
    added.push_back(std::move(token));
    return id;
  };
  TokenizerParts parts;
  parts.where = where;
  parts.unk = special("unk_token"), parts.eos = special("eos_token"),
  parts.pad = special("pad_token");
  if (!parts.unk || !parts.eos)
    fail(ErrorKind::file, where_vocab, "the vocabulary lacks \"{}\"; expected the {} token in it",
         configured.role(parts.unk ? "eos_token" : "unk_token"), parts.unk ? "end" : "unknown");
  parts.model = std::make_shared<MappedPiecesModel>(model_of(model, where), vocabulary, *parts.unk);
  parts.added = std::move(added);
  parts.special_roles = configured.roles();
  parts.normalizer = normalizer_of(model, model.add_dummy_prefix, true, where);
  // no space at either end of a text
  parts.decoder = {make_replace_decoder(std::string(kSpace), " "), make_byte_fallback_decoder(),
                   make_fuse_decoder(), make_strip_decoder(" ", kAny, kAny)};
  parts.suffix = {*parts.eos};
  parts.source = std::move(source);
  return tokenizer_with_config(std::move(parts), configured.config());
}

}  // namespace

bool is_sentence_piece(std::string_view content) {
  // field 1 of the file, and field 1 of that: a piece of less than 128 bytes, which others are not
  // in front of
  constexpr char kFirst = 0x0A;
  if (content.size() < 4 || content[0] != kFirst || content[2] != kFirst) return false;
  const auto outer = static_cast<uint8_t>(content[1]), inner = static_cast<uint8_t>(content[3]);
  // the score of the first piece has tag 0x15
  return outer < 128 && inner > 0 && outer >= inner + 2 && content.size() > size_t{4} + inner &&
         (outer == inner + 2 || content[size_t{4} + inner] == 0x15);
}

SentencePieceModel read_sentence_piece(std::span<const std::byte> file, const std::string& where) {
  SentencePieceModel model;
  SpecialNames names;
  for (Message message(file, where); message.next();) {
    if (message.field() == 1) read_piece(message.bytes(), where, model);
    if (message.field() == 2) read_trainer(message.bytes(), where, model, names);
    if (message.field() == 3) read_normalizer(message.bytes(), where, model);
  }
  if (model.pieces.empty()) fail(ErrorKind::file, where, "no pieces; expected some");
  find_special(model, names, where);
  return model;
}

GgufTokenizerData gguf_data_of(SentencePieceModel model) {
  GgufTokenizerData data;
  data.model = gguf_tokenizer_model(model.bpe ? "scores" : "unigram");
  data.pre = "default";
  data.tokens = std::move(model.pieces);
  data.scores = std::move(model.scores);
  data.token_types = std::move(model.types);
  data.unk_id = model.unk;
  data.bos_id = model.bos;
  data.eos_id = model.eos;
  data.pad_id = model.pad;
  data.add_space_prefix = model.add_dummy_prefix;
  data.remove_extra_whitespaces = model.remove_extra_whitespaces;
  data.precompiled_charsmap = std::move(model.charsmap);
  return data;
}

Tokenizer tokenizer_from_sentence_piece(std::span<const std::byte> file,
                                        const std::string& where,
                                        const TokenizerCompanions& companions) {
  SentencePieceModel model = read_sentence_piece(file, where);
  const ConfiguredTokens early(companions, {}, {}, where);
  const PieceClass kind = class_of(early.config(), model, where);
  if (kind.extra_ids > 0) add_sentinels(kind.extra_ids, early.config(), model);
  const ConfiguredTokens configured(companions, added_of(model), {}, where);
  const Json& config = configured.config();
  TokenizerParts parts;
  parts.where = where;
  parts.model = model_of(model, where);
  parts.added = configured.added(added_of(model), parts.model->vocabulary());
  parts.special_roles = configured.roles();
  parts.unk = model.unk;
  parts.bos = model.bos;
  parts.eos = model.eos;
  parts.pad = model.pad;
  const bool prefix =
      config_flag(config, "add_prefix_space", where).value_or(model.add_dummy_prefix);
  // after special tokens too, as in T5 and the older form of Llama
  const bool always = kind.extra_ids > 0 || config_flag(config, "legacy", where).value_or(false);
  parts.normalizer = normalizer_of(model, prefix, always, where);
  parts.decoder = {make_replace_decoder(std::string(kSpace), " "), make_byte_fallback_decoder(),
                   make_fuse_decoder()};
  // if spaces at the ends are removed, none is added before a text
  const bool merge = model.remove_extra_whitespaces;
  if (prefix || merge) parts.decoder.push_back(make_strip_decoder(" ", merge ? kAny : 1, 0));
  Tokenizer names = tokenizer_with_config(parts, config);
  const auto surround = [&](const char* key, bool usual, std::optional<int32_t> id,
                            std::vector<int32_t>& side) {
    const std::optional<bool> asked = config_flag(config, key, where);
    if (asked.value_or(false) && !id)
      fail(ErrorKind::file, where, "{} is true, and no file names such a token", key);
    if (asked.value_or(usual) && id) side = {*id};
  };
  surround("add_bos_token", kind.bos, names.bos(), parts.prefix);
  surround("add_eos_token", kind.eos, names.eos(), parts.suffix);
  return tokenizer_with_config(std::move(parts), config);
}

Tokenizer tokenizer_from_mapped_pieces(const MappedPieces& files,
                                       const std::string& where,
                                       const TokenizerCompanions& companions) {
  const ConfiguredTokens early(companions, {}, {}, where);
  const Json& config = early.config();
  if (const std::string name = tokenizer_class_in(config); !name.empty() && name != "Marian")
    fail(
        ErrorKind::spec, where,
        "tokenizer_class = {} is not supported with source.spm and vocab.json; expected Marian, or "
        "a tokenizer.json",
        config["tokenizer_class"].dump().substr(0, 60));
  const bool separate = config_flag(config, "separate_vocabs", where).value_or(false);
  if (separate && files.target_vocab.empty())
    fail(ErrorKind::file, where, "separate_vocabs is true; expected target_vocab.json next to it");
  const auto sibling = [&](const char* name) {
    return (std::filesystem::path(where).parent_path() / name).string();
  };
  auto source = std::make_shared<const Tokenizer>(side_of_mapped_pieces(
      files.source, where, files.vocab, sibling("vocab.json"), companions, nullptr));
  return side_of_mapped_pieces(files.target, sibling("target.spm"),
                               separate ? files.target_vocab : files.vocab,
                               sibling(separate ? "target_vocab.json" : "vocab.json"), companions,
                               std::move(source));
}

}  // namespace tessera::text
