// Decoders: from token texts back to text, as a chain of stages that tokens stream through. Whole
// decoding is streaming everything, so that the two cannot differ.
// The kinds of tokenizer.json: ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, WordPiece,
// Sequence.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/spec/json.h"

namespace tessera::text {

/// One stage of decoding, with its state. Texts pass in fragments: `ends` marks the last fragment
/// of what the next stage is to see as one token. A fragment never ends inside a UTF-8 character.
class DecodeStage {
 public:
  using Emit = std::function<void(std::string_view text, bool ends)>;
  virtual ~DecodeStage() = default;
  virtual std::unique_ptr<DecodeStage> clone() const = 0;
  virtual void push(std::string_view text, bool ends, const Emit& emit) = 0;
  /// Makes of a token behind others what the stage does, but for characters that wait for their
  /// rest. `fused`: tokens have become one text, of which nobody removes ends any more.
  virtual void inside(std::string& token, bool& fused) const = 0;
  /// The end of the stream: emits what was held back.
  virtual void finish(const Emit&) {}
};
using DecodeStagePointer = std::shared_ptr<const DecodeStage>;  // a prototype, to be cloned

/// The stages in order; null gives the one that joins tokens by spaces.
std::vector<DecodeStagePointer> make_decoder(const spec::Json& value, const std::string& where);

/// Bytes in the byte-level alphabet to UTF-8; invalid bytes become U+FFFD.
DecodeStagePointer make_byte_level_decoder();
/// Raw bytes to UTF-8; invalid bytes become U+FFFD.
DecodeStagePointer make_utf8_decoder();
/// Runs of tokens <0x00> to <0xFF> to UTF-8; each byte of an invalid run becomes U+FFFD.
DecodeStagePointer make_byte_fallback_decoder();
DecodeStagePointer make_replace_decoder(std::string literal, std::string content);
/// All tokens become one.
DecodeStagePointer make_fuse_decoder();
/// Removes up to `start` leading and `stop` trailing occurrences of one character from each token.
DecodeStagePointer make_strip_decoder(std::string character, size_t start, size_t stop);

/// Tokens joined by spaces, but those that begin with `prefix` without it and its space. `cleanup`
/// takes out the spaces before English punctuation and contractions.
DecodeStagePointer make_word_piece_decoder(std::string prefix, bool cleanup);

}  // namespace tessera::text
