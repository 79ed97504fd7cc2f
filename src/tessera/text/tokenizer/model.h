// Tokenizer models: convert a piece of text to token ids. Byte-pair encoding, SentencePiece BPE,
// WordPiece and Unigram implement this interface.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::text {

inline constexpr int32_t kNoToken = -1;
inline constexpr size_t kMaxTokens = 4'000'000;
inline constexpr size_t kMaxTokenBytes = 64 << 10;

/// A piece of text to encode, or a token that was found before.
struct Piece {
  std::string_view text;
  bool at_start = false;  // begins at the first character of the input
  int32_t id = kNoToken;  // the token, if found before
};

/// Token texts and their ids. Ids may have few gaps.
class Vocabulary {
 public:
  /// Throws Error(file) naming `where` for an id that is negative, far beyond the number of tokens,
  /// or repeated, and for a text that is too long or repeated.
  Vocabulary(std::vector<std::pair<std::string, int64_t>> tokens, const std::string& where);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  /// kNoToken if no token has this text.
  int32_t id(std::string_view token) const;
  /// nullopt if no token has this id.
  std::optional<std::string_view> token(int32_t id) const;
  /// One more than the largest id.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t count() const { return static_cast<int32_t>(ids_.size()); }
  /// Ids of the tokens "<0x00>" to "<0xFF>", kNoToken for missing ones.
  std::vector<int32_t> byte_tokens() const;
  /// Bytes of the longest token.
  size_t longest() const { return longest_; }

 private:
  std::vector<std::string> tokens_;
  std::vector<bool> present_;
  std::unordered_map<std::string_view, int32_t> ids_;
  size_t longest_ = 0;
};
using VocabularyPointer = std::shared_ptr<const Vocabulary>;

class Model {
 public:
  virtual ~Model() = default;
  /// Appends the ids of each piece in order. Pieces are not empty and well-formed UTF-8, except for
  /// a byte model. Thread-safe.
  virtual void encode(std::span<const Piece> pieces, std::vector<int32_t>& ids) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
};
using ModelPointer = std::shared_ptr<const Model>;

}  // namespace tessera::text
