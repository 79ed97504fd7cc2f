// Normalizers: transform text before pre-tokenization. The types of tokenizer.json: NFC, NFD, NFKC,
// NFKD, Nmt, Lowercase, Prepend, Replace, Strip, StripAccents, BertNormalizer, Precompiled,
// Sequence. Other types are errors that name them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/charsmap.h"

namespace tessera::text {

/// Text during normalization.
struct NormalizedText {
  std::string text;  // well-formed UTF-8
  /// Its first character is the first character of the input; needed by Metaspace with
  /// prepend_scheme "first".
  bool at_start = true;
  size_t limit = 0;  // max. size in bytes; exceeding it is Error(input)
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(NormalizedText& text) const = 0;
};
using NormalizerPointer = std::shared_ptr<const Normalizer>;

NormalizerPointer make_normalizer(const spec::Json& value, const std::string& where);

NormalizerPointer make_prepend(std::string prefix);
NormalizerPointer make_replace(std::string literal, std::string content);

struct BertNormalizerOptions {
  bool clean_text = true;             // drops control characters; replaces white space by spaces
  bool handle_chinese_chars = true;   // spaces around each ideograph
  std::optional<bool> strip_accents;  // default: as `lowercase`
  bool lowercase = true;
};
NormalizerPointer make_bert_normalizer(const BertNormalizerOptions& options);

/// Applies a precompiled character map: to each grapheme cluster of less than six bytes that begins
/// with a key, as a whole, otherwise to each character that does (as in the `tokenizers` library),
/// or with `longest` to the longest key at each position (as in SentencePiece).
NormalizerPointer make_precompiled(Charsmap map, bool longest);

/// SentencePiece's spaces: U+2581; with `prefix` one before the text, with `merge` one before each
/// word and no others.
NormalizerPointer make_sentence_piece_spaces(bool prefix, bool merge);

NormalizerPointer make_lower_case();

NormalizerPointer make_sequence(std::vector<NormalizerPointer> parts);

/// Normalizes `text`; `normalizer` may be null.
NormalizedText normalize(const Normalizer* normalizer, std::string_view text, bool at_start = true);

}  // namespace tessera::text
