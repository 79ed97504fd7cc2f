// The vocabulary as a trie over the bytes of its tokens, for masks of the whole vocabulary.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::text {

/// A set of the bytes 0 to 127; its last element also represents all bytes above.
struct ByteSet {
  uint64_t low = 0, high = 0;
  void add(uint8_t byte) {
    (byte < 64 ? low : high) |= uint64_t{1} << (byte < 64 ? byte : std::min<int>(byte, 127) - 64);
  }
  void add(const ByteSet& other) { low |= other.low, high |= other.high; }
  bool within(const ByteSet& other) const {
    return (low & ~other.low) == 0 && (high & ~other.high) == 0;
  }
};

/// A tree with bytes on its edges; nodes are in depth-first order.
class TokenTrie {
 public:
  /// All tokens of the tokenizer except special tokens.
  explicit TokenTrie(const Tokenizer& tokenizer);
  /// Tokens by id; those without bytes have no text. For tests and tables.
  explicit TokenTrie(std::vector<std::optional<std::string>> tokens);

  struct Node {
    uint8_t byte = 0;
    uint16_t depth = 0;              // bytes down to the end of its edge
    uint32_t end = 0;                // index of the first node after its subtree
    uint32_t first = 0, behind = 0;  // in ids(): the tokens that end here
  };
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<int32_t>& ids() const { return ids_; }
  /// By node, the bytes of the longest token in its subtree.
  const std::vector<uint16_t>& reach() const { return reach_; }
  /// By node, the bytes of all edges in its subtree.
  const std::vector<ByteSet>& below() const { return below_; }
  size_t longest() const { return longest_; }
  /// One more than the largest id.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  /// nullopt for special tokens, unused ids, and tokens without text.
  const std::optional<std::string>& bytes(int32_t id) const {
    return tokens_[static_cast<size_t>(id)];
  }
  /// The token with this name ("<think>"), special or not.
  std::optional<int32_t> named(std::string_view text) const;

 private:
  void build();

  std::optional<Tokenizer> tokenizer_;
  std::vector<std::optional<std::string>> tokens_;
  std::vector<Node> nodes_;
  std::vector<int32_t> ids_;
  std::vector<uint16_t> reach_;
  std::vector<ByteSet> below_;
  size_t longest_ = 0;
};

}  // namespace tessera::text
