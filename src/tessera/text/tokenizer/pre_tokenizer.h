// Pre-tokenizers: split normalized text into pieces that the model encodes separately. The types of
// tokenizer.json: ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, Metaspace,
// BertPreTokenizer, Sequence. Other types are errors that name them.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/model.h"

namespace tessera::text {

/// Pieces in order, and storage of those that are not substrings of the input.
struct Pieces {
  std::vector<Piece> list;
  std::deque<std::string> storage;

  std::string_view keep(std::string text) { return storage.emplace_back(std::move(text)); }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Pieces that are tokens already stay unchanged.
  virtual void apply(Pieces& pieces) const = 0;
};
using PreTokenizerPointer = std::shared_ptr<const PreTokenizer>;

PreTokenizerPointer make_pre_tokenizer(const spec::Json& value, const std::string& where);

/// Splits at white space and around each punctuation character.
PreTokenizerPointer make_bert_pre_tokenizer();

/// Isolates the matches of each pattern in turn, then converts bytes to the byte-level alphabet.
PreTokenizerPointer make_byte_level_pre_tokenizer(const std::vector<std::string>& patterns,
                                                  const std::string& where);

}  // namespace tessera::text
