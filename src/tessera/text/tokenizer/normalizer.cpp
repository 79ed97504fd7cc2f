#include "tessera/text/tokenizer/normalizer.h"

#include <algorithm>
#include <array>
#include <utf8proc.h>
#include <utility>

#include "tessera/base/base64.h"
#include "tessera/base/error.h"
#include "tessera/text/tokenizer/split.h"
#include "tessera/text/tokenizer_files/json_object.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

void check_growth(const NormalizedText& text, size_t size) {
  if (size > text.limit)
    fail(ErrorKind::input, "tokenizer", "the normalizer makes a text grow beyond {} bytes",
         text.limit);
}

// NFC, NFD, NFKC, NFKD. The canonical order is restored by a sort of each run of marks, because
// utf8proc's own is quadratic in the length of the run, and a text may be one long run.
class UnicodeForm final : public Normalizer {
 public:
  UnicodeForm(bool compose, bool compatible) : compose_(compose), compatible_(compatible) {}

  void apply(NormalizedText& text) const override {
    if (is_ascii(text.text)) return;
    std::vector<utf8proc_int32_t> points = decompose(text.text);
    order_marks(points);
    if (compose_) {
      const auto size = utf8proc_normalize_utf32(
          points.data(), static_cast<utf8proc_ssize_t>(points.size()),
          static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      if (size < 0) fail(ErrorKind::internal, "tokenizer", "utf8proc: {}", utf8proc_errmsg(size));
      points.resize(static_cast<size_t>(size));
    }
    text.text.clear();
    for (const utf8proc_int32_t c : points) append_character(text.text, static_cast<char32_t>(c));
    check_growth(text, text.text.size());
  }

 private:
  std::vector<utf8proc_int32_t> decompose(std::string_view text) const {
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                        (compatible_ ? UTF8PROC_COMPAT : 0));
    std::vector<utf8proc_int32_t> points;
    points.reserve(text.size());
    std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition has 18 code points
    for_each_character(text, [&](char32_t c, size_t, size_t) {
      int boundary = 0;
      const auto n =
          utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(),
                                  static_cast<utf8proc_ssize_t>(parts.size()), options, &boundary);
      if (n < 0 || n > static_cast<utf8proc_ssize_t>(parts.size()))
        fail(ErrorKind::internal, "tokenizer", "utf8proc cannot decompose U+{:04X}",
             static_cast<uint32_t>(c));
      points.insert(points.end(), parts.begin(), parts.begin() + n);
    });
    return points;
  }

  static void order_marks(std::vector<utf8proc_int32_t>& points) {
    const auto combining_class = [](utf8proc_int32_t c) {
      return utf8proc_get_property(c)->combining_class;
    };
    const auto before = [&](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    };
    for (auto begin = points.begin(); begin != points.end();) {
      auto end = begin;
      while (end != points.end() && combining_class(*end) != 0) ++end;
      std::stable_sort(begin, end, before);
      begin = end == points.end() ? end : end + 1;
    }
  }

  bool compose_;
  bool compatible_;
};

class Lowercase final : public Normalizer {
 public:
  void apply(NormalizedText& text) const override {
    std::string out;
    out.reserve(text.text.size());
    for_each_character(text.text, [&](char32_t c, size_t, size_t) { append_lower_case(out, c); });
    text.text = std::move(out);
  }
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(NormalizedText& text) const override {
    if (text.text.empty()) return;
    check_growth(text, text.text.size() + prefix_.size());
    text.text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(NormalizedText& text) const override {
    std::string out;
    out.reserve(text.text.size());
    for (const Span& span : pattern_.spans(text.text)) {
      const auto found = std::string_view(text.text).substr(span.begin, span.end - span.begin);
      // the replacement of several characters is aligned with the last of them
      const bool one = !found.empty() && character_length(found, 0) == found.size();
      if (span.is_match && span.begin == 0 && !found.empty() && (!one || content_.empty()))
        text.at_start = false;
      out += span.is_match ? std::string_view(content_) : found;
      check_growth(text, out.size());
    }
    text.text = std::move(out);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class StripNormalizer final : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}

  void apply(NormalizedText& text) const override {
    size_t begin = text.text.size();
    size_t end = 0;
    for_each_character(text.text, [&](char32_t c, size_t from, size_t to) {
      if (is_white_space(c)) return;
      begin = std::min(begin, from);
      end = to;
    });
    if (!left_) begin = 0;
    if (!right_) end = text.text.size();
    text.at_start = text.at_start && begin == 0;
    text.text = begin < end ? text.text.substr(begin, end - begin) : std::string();
  }

 private:
  bool left_;
  bool right_;
};

// Removes characters with a property.
class Drop final : public Normalizer {
 public:
  explicit Drop(bool (*drops)(char32_t)) : drops_(drops) {}
  void apply(NormalizedText& text) const override {
    std::string out;
    out.reserve(text.text.size());
    for_each_character(text.text, [&](char32_t c, size_t begin, size_t end) {
      if (!drops_(c)) {
        out.append(text.text, begin, end - begin);
      } else if (begin == 0) {
        text.at_start = false;
      }
    });
    text.text = std::move(out);
  }

 private:
  bool (*drops_)(char32_t);
};

// Characters that SentencePiece's rule "nmt" removes, and those that it replaces by a space.
bool is_dropped_by_nmt(char32_t c) {
  return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
         c == 0x8F || c == 0x9F;
}
bool is_space_to_nmt(char32_t c) {
  return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
         (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
         c == 0xFFFD;
}

// Replaces characters with a property by a space.
class NmtSpace final : public Normalizer {
 public:
  void apply(NormalizedText& text) const override {
    std::string out;
    out.reserve(text.text.size());
    for_each_character(text.text, [&](char32_t c, size_t begin, size_t end) {
      if (is_space_to_nmt(c)) {
        out += ' ';
      } else {
        out.append(text.text, begin, end - begin);
      }
    });
    text.text = std::move(out);
  }
};

class Precompiled final : public Normalizer {
 public:
  Precompiled(Charsmap map, bool longest) : map_(std::move(map)), longest_(longest) {
    for (size_t c = 0; c < plain_.size() && !longest_; ++c) {
      const char character = static_cast<char>(c);
      plain_[c] = c != '\r' && !map_.shortest({&character, 1});
    }
  }

  void apply(NormalizedText& text) const override {
    const std::string_view in = text.text;
    std::string out;
    out.reserve(in.size());
    for (size_t at = 0; at < in.size();) {
      // a shortcut: an ASCII character before another one is a cluster of its own, but for CR LF
      const size_t begin = at;
      while (at + 1 < in.size() && is_plain(in[at]) && static_cast<uint8_t>(in[at + 1]) < 0x80)
        ++at;
      out.append(in, begin, at - begin);
      at += longest_ ? replace_longest(in.substr(at), out) : replace_cluster(in.substr(at), out);
      check_growth(text, out.size());
    }
    text.text = std::move(out);
  }

 private:
  static constexpr size_t kLongestCluster = 5;  // bytes; longer ones are replaced by characters

  bool is_plain(char c) const {
    return static_cast<uint8_t>(c) < plain_.size() && plain_[static_cast<uint8_t>(c)];
  }

  static size_t cluster_size(std::string_view text) {
    size_t at = character_length(text, 0);
    auto left = static_cast<utf8proc_int32_t>(code_point_at(text, 0, at));
    utf8proc_int32_t state = 0;
    while (at < text.size()) {
      const size_t length = character_length(text, at);
      const auto right = static_cast<utf8proc_int32_t>(code_point_at(text, at, length));
      if (utf8proc_grapheme_break_stateful(left, right, &state)) break;
      left = right;
      at += length;
    }
    return at;
  }

  size_t replace_cluster(std::string_view text, std::string& out) const {
    const std::string_view cluster = text.substr(0, cluster_size(text));
    if (cluster.size() <= kLongestCluster) {
      if (const auto match = map_.shortest(cluster)) {
        out += match->replacement;
        return cluster.size();
      }
    }
    for_each_character(cluster, [&](char32_t, size_t begin, size_t end) {
      const std::string_view character = cluster.substr(begin, end - begin);
      const auto match = map_.shortest(character);
      out += match ? match->replacement : character;
    });
    return cluster.size();
  }

  size_t replace_longest(std::string_view text, std::string& out) const {
    if (const auto match = map_.longest(text)) {
      out += match->replacement;
      return match->size;
    }
    const size_t length = character_length(text, 0);
    out += text.substr(0, length);
    return length;
  }

  Charsmap map_;
  bool longest_;
  std::array<bool, 128> plain_{};  // ASCII characters that stay as they are when alone
};

class SentencePieceSpaces final : public Normalizer {
 public:
  SentencePieceSpaces(bool prefix, bool merge) : prefix_(prefix), merge_(merge) {}
  void apply(NormalizedText& text) const override {
    constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581
    std::string out;
    out.reserve(text.text.size() + text.text.size() / 2);
    bool in_word = false;
    bool any_word = false;
    for (const char c : text.text) {
      if (c == ' ') {
        in_word = false;
        if (!merge_) out += kSpace;
        continue;
      }
      if (!in_word && (merge_ || (prefix_ && !any_word))) out += kSpace;
      in_word = any_word = true;
      out += c;
    }
    check_growth(text, out.size());
    text.text = std::move(out);
  }

 private:
  bool prefix_;
  bool merge_;
};

// White space of any kind becomes a space, and ideographs get spaces around them.
class Space final : public Normalizer {
 public:
  Space(bool white_space, bool ideographs) : white_space_(white_space), ideographs_(ideographs) {}
  void apply(NormalizedText& text) const override {
    std::string out;
    out.reserve(text.text.size());
    for_each_character(text.text, [&](char32_t c, size_t begin, size_t end) {
      if (white_space_ && is_white_space(c)) {
        out += ' ';
        return;
      }
      const bool spaced = ideographs_ && is_ideograph(c);
      if (spaced) out += ' ';
      out.append(text.text, begin, end - begin);
      if (spaced) out += ' ';
    });
    text.text = std::move(out);
    check_growth(text, text.text.size());
  }

 private:
  bool white_space_;
  bool ideographs_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<NormalizerPointer> parts) : parts_(std::move(parts)) {}
  void apply(NormalizedText& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }

 private:
  std::vector<NormalizerPointer> parts_;
};

NormalizerPointer normalizer_sequence_from_json(const spec::Json& value, const std::string& where) {
  const JsonObject object(value, where, {"type", "normalizers"});
  const spec::Json& list = object.at("normalizers");
  if (!list.is_array()) fail(ErrorKind::file, where, "\"normalizers\" is no array");
  std::vector<NormalizerPointer> parts;
  for (size_t i = 0; i < list.size(); ++i)
    parts.push_back(make_normalizer(list[i], fmt::format("{}.normalizers[{}]", where, i)));
  return make_sequence(std::move(parts));
}

// Unicode forms can grow a text elevenfold, sequences more; a hostile file would without end.
constexpr size_t kGrowthFactor = 64;
constexpr size_t kGrowthConstant = 1 << 20;

}  // namespace

NormalizerPointer make_prepend(std::string prefix) {
  return std::make_shared<Prepend>(std::move(prefix));
}

NormalizerPointer make_replace(std::string literal, std::string content) {
  return std::make_shared<ReplaceNormalizer>(Pattern(std::move(literal)), std::move(content));
}

NormalizerPointer make_bert_normalizer(const BertNormalizerOptions& options) {
  std::vector<NormalizerPointer> parts;
  if (options.clean_text)
    parts.push_back(std::make_shared<Drop>([](char32_t c) {
      return c == 0xFFFD || (is_control(c) && c != '\t' && c != '\n' && c != '\r');
    }));
  if (options.clean_text || options.handle_chinese_chars)
    parts.push_back(std::make_shared<Space>(options.clean_text, options.handle_chinese_chars));
  if (options.strip_accents.value_or(options.lowercase)) {
    parts.push_back(std::make_shared<UnicodeForm>(false, false));
    parts.push_back(std::make_shared<Drop>(&is_nonspacing_mark));
  }
  if (options.lowercase) parts.push_back(std::make_shared<Lowercase>());
  return make_sequence(std::move(parts));
}

NormalizerPointer make_precompiled(Charsmap map, bool longest) {
  return std::make_shared<Precompiled>(std::move(map), longest);
}

NormalizerPointer make_sentence_piece_spaces(bool prefix, bool merge) {
  return std::make_shared<SentencePieceSpaces>(prefix, merge);
}

NormalizerPointer make_lower_case() {
  return std::make_shared<Lowercase>();
}
NormalizerPointer make_sequence(std::vector<NormalizerPointer> parts) {
  return std::make_shared<NormalizerSequence>(std::move(parts));
}

NormalizerPointer make_normalizer(const spec::Json& value, const std::string& where) {
  if (value.is_null()) return nullptr;
  const std::string type = type_of(value, where);
  if (type == "Sequence") return normalizer_sequence_from_json(value, where);
  if (type == "Prepend")
    return make_prepend(JsonObject(value, where, {"type", "prepend"}).string("prepend"));
  if (type == "Replace") {
    const JsonObject object(value, where, {"type", "pattern", "content"});
    return std::make_shared<ReplaceNormalizer>(Pattern::from_json(object.at("pattern"), where),
                                               object.string("content"));
  }
  if (type == "Strip") {
    const JsonObject object(value, where, {"type", "strip_left", "strip_right"});
    return std::make_shared<StripNormalizer>(object.boolean("strip_left", true),
                                             object.boolean("strip_right", true));
  }
  if (type == "BertNormalizer") {
    const JsonObject object(
        value, where, {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
    BertNormalizerOptions options;
    options.clean_text = object.boolean("clean_text", true);
    options.handle_chinese_chars = object.boolean("handle_chinese_chars", true);
    options.lowercase = object.boolean("lowercase", true);
    if (object.has("strip_accents")) options.strip_accents = object.boolean("strip_accents", true);
    return make_bert_normalizer(options);
  }
  if (type == "Precompiled") {
    const JsonObject object(value, where, {"type", "precompiled_charsmap"});
    const auto bytes = bytes_of_base64(object.string("precompiled_charsmap"));
    if (!bytes) fail(ErrorKind::file, where, "\"precompiled_charsmap\" is not base64");
    return make_precompiled(Charsmap(*bytes, where), false);
  }
  const JsonObject bare(value, where, {"type"});
  if (type == "Nmt")
    return make_sequence(
        {std::make_shared<Drop>(&is_dropped_by_nmt), std::make_shared<NmtSpace>()});
  if (type == "NFC") return std::make_shared<UnicodeForm>(true, false);
  if (type == "NFD") return std::make_shared<UnicodeForm>(false, false);
  if (type == "NFKC") return std::make_shared<UnicodeForm>(true, true);
  if (type == "NFKD") return std::make_shared<UnicodeForm>(false, true);
  if (type == "Lowercase") return std::make_shared<Lowercase>();
  if (type == "StripAccents") return std::make_shared<Drop>(&is_mark);
  fail(ErrorKind::file, where,
       "normalizer \"{}\" is not supported; expected NFC, NFD, NFKC, NFKD, Nmt, Lowercase, "
       "Prepend, Replace, Strip, StripAccents, BertNormalizer, Precompiled or Sequence",
       type.substr(0, 50));
}

NormalizedText normalize(const Normalizer* normalizer, std::string_view text, bool at_start) {
  NormalizedText out{std::string(text), at_start, kGrowthFactor * text.size() + kGrowthConstant};
  if (normalizer != nullptr) normalizer->apply(out);
  return out;
}

}  // namespace tessera::text
