// Decoders: convert tokens to text in a chain of streaming stages. Batch decoding uses the same
// stages, so both always agree. The types of tokenizer.json: ByteLevel, ByteFallback, Fuse,
// Replace, Strip, Metaspace, WordPiece, Sequence.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::text {

/// One decoding stage with its state. Text arrives in fragments: `ends` marks the last fragment of
/// one token for the next stage. A fragment never ends inside a UTF-8 character.
class DecodeStage {
 public:
  using Emit = std::function<void(std::string_view text, bool ends)>;
  virtual ~DecodeStage() = default;
  virtual std::unique_ptr<DecodeStage> clone() const = 0;
  virtual void push(std::string_view text, bool ends, const Emit& emit) = 0;
  /// Applies the stage to a token that is not the first, without buffering incomplete characters.
  /// `fused`: tokens have become one text, whose ends are not stripped.
  virtual void inside(std::string& token, bool& fused) const = 0;
  /// End of the stream: emits buffered text.
  virtual void finish(const Emit&) {}
};
using DecodeStagePointer = std::shared_ptr<const DecodeStage>;  // a prototype, to be cloned

/// The stages in order; null gives the default, which joins tokens with spaces.
std::vector<DecodeStagePointer> make_decoder(const spec::Json& value, const std::string& where);

/// Bytes in the byte-level alphabet to UTF-8; invalid bytes become U+FFFD.
DecodeStagePointer make_byte_level_decoder();
/// Raw bytes to UTF-8; invalid bytes become U+FFFD.
DecodeStagePointer make_utf8_decoder();
/// Runs of tokens <0x00> to <0xFF> to UTF-8; each byte of an invalid run becomes U+FFFD.
DecodeStagePointer make_byte_fallback_decoder();
DecodeStagePointer make_replace_decoder(std::string literal, std::string content);
/// Joins all tokens into one.
DecodeStagePointer make_fuse_decoder();
/// Removes up to `start` leading and `stop` trailing occurrences of one character from each token.
DecodeStagePointer make_strip_decoder(std::string character, size_t start, size_t stop);

/// Joins tokens with spaces, except tokens with `prefix`, which is removed. `cleanup` removes
/// spaces before English punctuation and contractions.
DecodeStagePointer make_word_piece_decoder(std::string prefix, bool cleanup);

}  // namespace tessera::text
