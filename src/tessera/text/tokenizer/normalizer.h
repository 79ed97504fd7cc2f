// Normalizers: what happens to a text before it is cut into pieces.
// The kinds of tokenizer.json: NFC, NFD, NFKC, NFKD, Nmt, Lowercase, Prepend, Replace, Strip,
// StripAccents, BertNormalizer, Precompiled, Sequence. Any other kind is an error that names it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/charsmap.h"

namespace tessera::text {

/// A text on its way through the normalizers.
struct NormalizedText {
  std::string text;  // well-formed UTF-8
  /// Its first character comes from the first character of the input; Metaspace with
  /// prepend_scheme "first" asks for this.
  bool at_start = true;
  size_t limit = 0;  // bytes it may grow to; exceeding it is Error(input)
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
  bool clean_text = true;            // drops control characters; white space of any kind is a space
  bool handle_chinese_chars = true;  // spaces around each ideograph
  std::optional<bool> strip_accents;  // as `lowercase` says when not set
  bool lowercase = true;
};
NormalizerPointer make_bert_normalizer(const BertNormalizerOptions& options);

/// What a precompiled character map replaces: in each grapheme cluster of less than six bytes that
/// begins with a key the whole of it, else each character that does (as the `tokenizers` library
/// has it), or by `longest` the longest key wherever one begins (as SentencePiece has it).
NormalizerPointer make_precompiled(Charsmap map, bool longest);

/// Spaces as SentencePiece writes them: U+2581, with `prefix` one before the text, with `merge` one
/// before each word and none elsewhere.
NormalizerPointer make_sentence_piece_spaces(bool prefix, bool merge);

NormalizerPointer make_lower_case();

NormalizerPointer make_sequence(std::vector<NormalizerPointer> parts);

/// `text` through `normalizer`, which may be null.
NormalizedText normalize(const Normalizer* normalizer, std::string_view text, bool at_start = true);

}  // namespace tessera::text
