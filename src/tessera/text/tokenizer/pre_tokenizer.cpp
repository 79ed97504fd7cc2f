#include "tessera/text/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/byte_level.h"
#include "tessera/text/tokenizer/split.h"
#include "tessera/text/tokenizer_files/json_object.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

// Radford et al. 2019 (GPT-2): contractions, words, numbers and the rest, each with a space before.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Replaces each piece by its parts.
template <class Cut>
void cut_each(Pieces& pieces, Cut&& cut) {
  std::vector<Piece> out;
  out.reserve(pieces.list.size());
  for (const Piece& piece : pieces.list) {
    if (piece.id != kNoToken) {
      out.push_back(piece);
      continue;
    }
    for (const std::string_view part : cut(piece))
      out.push_back({part, piece.at_start && part.data() == piece.text.data()});
  }
  pieces.list = std::move(out);
}

class Split final : public PreTokenizer {
 public:
  Split(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(Pieces& pieces) const override {
    cut_each(pieces,
             [&](const Piece& piece) { return split(piece.text, pattern_, behavior_, invert_); });
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class PrefixSpace final : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    for (Piece& piece : pieces.list)
      if (piece.id == kNoToken && !piece.text.starts_with(' '))
        piece.text = pieces.keep(" " + std::string(piece.text));
  }
};

class ByteAlphabet final : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    // all pieces go into one string: a text has as many pieces as words
    std::string all;
    std::vector<size_t> ends;
    ends.reserve(pieces.list.size());
    for (const Piece& piece : pieces.list) {
      if (piece.id == kNoToken) append_as_byte_characters(all, piece.text);
      ends.push_back(all.size());
    }
    const std::string_view kept = pieces.keep(std::move(all));
    size_t begin = 0;
    for (size_t i = 0; i < ends.size(); begin = ends[i++])
      if (pieces.list[i].id == kNoToken) pieces.list[i].text = kept.substr(begin, ends[i] - begin);
  }
};

enum class PrependScheme { always, first, never };

// Replaces spaces by another character and splits before it.
class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  MetaspacePreTokenizer(std::string replacement, PrependScheme scheme, bool cut)
      : replacement_(std::move(replacement)),
        scheme_(scheme),
        cut_(cut),
        delimiter_(replacement_) {}

  void apply(Pieces& pieces) const override {
    for (Piece& piece : pieces.list)
      if (piece.id == kNoToken) piece.text = pieces.keep(marked(piece));
    if (!cut_) return;
    cut_each(pieces, [&](const Piece& piece) {
      return split(piece.text, delimiter_, SplitBehavior::merged_with_next);
    });
  }

 private:
  std::string marked(const Piece& piece) const {
    std::string out;
    out.reserve(piece.text.size() + replacement_.size());
    for (const char c : piece.text) {
      if (c == ' ') {
        out += replacement_;
      } else {
        out += c;
      }
    }
    const bool wanted =
        scheme_ == PrependScheme::always || (scheme_ == PrependScheme::first && piece.at_start);
    if (wanted && !out.starts_with(replacement_)) out.insert(0, replacement_);
    return out;
  }

  std::string replacement_;
  PrependScheme scheme_;
  bool cut_;
  Pattern delimiter_;
};

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<PreTokenizerPointer> parts)
      : parts_(std::move(parts)) {}
  void apply(Pieces& pieces) const override {
    for (const auto& part : parts_) part->apply(pieces);
  }

 private:
  std::vector<PreTokenizerPointer> parts_;
};

PreTokenizerPointer make_split(Pattern pattern, SplitBehavior behavior, bool invert = false) {
  return std::make_shared<Split>(std::move(pattern), behavior, invert);
}

PreTokenizerPointer byte_level_from_json(const spec::Json& value, const std::string& where) {
  const JsonObject object(value, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  std::vector<PreTokenizerPointer> parts;
  if (object.boolean("add_prefix_space", true)) parts.push_back(std::make_shared<PrefixSpace>());
  if (object.boolean("use_regex", true))
    parts.push_back(make_split(Pattern(Regex(kByteLevelPattern, where)), SplitBehavior::isolated));
  parts.push_back(std::make_shared<ByteAlphabet>());
  return std::make_shared<PreTokenizerSequence>(std::move(parts));
}

PreTokenizerPointer split_from_json(const spec::Json& value, const std::string& where) {
  const JsonObject object(value, where, {"type", "pattern", "behavior", "invert"});
  return make_split(Pattern::from_json(object.at("pattern"), where),
                    split_behavior_named(object.string("behavior"), where),
                    object.boolean("invert", false));
}

// "add_prefix_space" is the older name of "prepend_scheme"; both may be given if they agree.
PrependScheme prepend_scheme_of(const JsonObject& object) {
  const std::string name = object.string("prepend_scheme", "always");
  if (name != "always" && name != "first" && name != "never")
    fail(ErrorKind::file, object.where(),
         "prepend_scheme = \"{}\"; expected always, first or never", name.substr(0, 50));
  if (!object.boolean("add_prefix_space", true)) {
    if (object.has("prepend_scheme") && name != "never")
      fail(ErrorKind::file, object.where(),
           "add_prefix_space = false contradicts prepend_scheme = \"{}\"", name);
    return PrependScheme::never;
  }
  if (name == "never") return PrependScheme::never;
  return name == "first" ? PrependScheme::first : PrependScheme::always;
}

PreTokenizerPointer metaspace_pre_tokenizer_from_json(const spec::Json& value,
                                                      const std::string& where) {
  const JsonObject object(
      value, where,
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  return std::make_shared<MetaspacePreTokenizer>(
      object.character("replacement"), prepend_scheme_of(object), object.boolean("split", true));
}

PreTokenizerPointer pre_tokenizer_sequence_from_json(const spec::Json& value,
                                                     const std::string& where) {
  const JsonObject object(value, where, {"type", "pretokenizers"});
  const spec::Json& list = object.at("pretokenizers");
  if (!list.is_array()) fail(ErrorKind::file, where, "\"pretokenizers\" is no array");
  std::vector<PreTokenizerPointer> parts;
  for (size_t i = 0; i < list.size(); ++i)
    if (auto part = make_pre_tokenizer(list[i], fmt::format("{}.pretokenizers[{}]", where, i)))
      parts.push_back(std::move(part));
  return std::make_shared<PreTokenizerSequence>(std::move(parts));
}

PreTokenizerPointer whitespace() {
  const Pattern::Predicate is_other = [](char32_t c) {
    return !is_word_character(c) && !is_white_space(c);
  };
  // \w+|[^\w\s]+ : drop white space, then separate runs of words from runs of the rest
  return std::make_shared<PreTokenizerSequence>(
      std::vector<PreTokenizerPointer>{make_split(Pattern(&is_white_space), SplitBehavior::removed),
                                       make_split(Pattern(is_other), SplitBehavior::contiguous)});
}

}  // namespace

PreTokenizerPointer make_bert_pre_tokenizer() {
  return std::make_shared<PreTokenizerSequence>(std::vector<PreTokenizerPointer>{
      make_split(Pattern(&is_white_space), SplitBehavior::removed),
      make_split(Pattern(&is_punctuation), SplitBehavior::isolated)});
}

PreTokenizerPointer make_byte_level_pre_tokenizer(const std::vector<std::string>& patterns,
                                                  const std::string& where) {
  std::vector<PreTokenizerPointer> parts;
  for (const std::string& pattern : patterns)
    parts.push_back(make_split(Pattern(Regex(pattern, where)), SplitBehavior::isolated));
  parts.push_back(std::make_shared<ByteAlphabet>());
  return std::make_shared<PreTokenizerSequence>(std::move(parts));
}

PreTokenizerPointer make_pre_tokenizer(const spec::Json& value, const std::string& where) {
  if (value.is_null()) return nullptr;
  const std::string type = type_of(value, where);
  if (type == "ByteLevel") return byte_level_from_json(value, where);
  if (type == "Split") return split_from_json(value, where);
  if (type == "Metaspace") return metaspace_pre_tokenizer_from_json(value, where);
  if (type == "Sequence") return pre_tokenizer_sequence_from_json(value, where);
  if (type == "Digits") {
    const JsonObject object(value, where, {"type", "individual_digits"});
    return make_split(Pattern(&is_numeric), object.boolean("individual_digits", false)
                                                ? SplitBehavior::isolated
                                                : SplitBehavior::contiguous);
  }
  if (type == "Punctuation") {
    const JsonObject object(value, where, {"type", "behavior"});
    return make_split(Pattern(&is_punctuation),
                      split_behavior_named(object.string("behavior", "Isolated"), where));
  }
  if (type == "Whitespace" || type == "WhitespaceSplit" || type == "BertPreTokenizer") {
    const JsonObject bare(value, where, {"type"});
    if (type == "BertPreTokenizer") return make_bert_pre_tokenizer();
    if (type == "Whitespace") return whitespace();
    return make_split(Pattern(&is_white_space), SplitBehavior::removed);
  }
  fail(ErrorKind::file, where,
       "pre-tokenizer \"{}\" is not supported; expected ByteLevel, Split, Digits, Whitespace, "
       "WhitespaceSplit, Punctuation, Metaspace, BertPreTokenizer or "
       "Sequence",
       type.substr(0, 50));
}

}  // namespace tessera::text
