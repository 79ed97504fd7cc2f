// Pre-tokenizers: how a normalized text is cut into the pieces that the model encodes one by one.
// The kinds of tokenizer.json: ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Punctuation,
// Metaspace, BertPreTokenizer, Sequence. Any other kind is an error that names it.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/spec/json.h"
#include "tessera/text/tokenizer/model.h"

namespace tessera::text {

/// Pieces in order, and the strings that those no longer found in the input live in.
struct Pieces {
  std::vector<Piece> list;
  std::deque<std::string> storage;

  std::string_view keep(std::string text) { return storage.emplace_back(std::move(text)); }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Leaves pieces that are tokens already as they are.
  virtual void apply(Pieces& pieces) const = 0;
};
using PreTokenizerPointer = std::shared_ptr<const PreTokenizer>;

PreTokenizerPointer make_pre_tokenizer(const spec::Json& value, const std::string& where);

/// Cuts at white space, and around each punctuation character.
PreTokenizerPointer make_bert_pre_tokenizer();

/// Isolates the matches of each pattern in turn, then writes bytes in the byte-level alphabet.
PreTokenizerPointer make_byte_level_pre_tokenizer(const std::vector<std::string>& patterns,
                                                  const std::string& where);

}  // namespace tessera::text
