// The tokens of a vocabulary by the bytes that they add to a text, for those who ask about all of
// them at once.
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

/// Some of the bytes 0 to 127; the last of them stands for all above as well.
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

/// A tree whose edges are bytes, its nodes in the order of a walk that goes down first.
class TokenTrie {
 public:
  /// Of the tokenizer's tokens, special ones apart.
  explicit TokenTrie(const Tokenizer& tokenizer);
  /// Of tokens by id; those without bytes stand for no text. For tests and tables.
  explicit TokenTrie(std::vector<std::optional<std::string>> tokens);

  struct Node {
    uint8_t byte = 0;
    uint16_t depth = 0;              // bytes down to its edge's upper end
    uint32_t end = 0;                // number of the first node behind what hangs below it
    uint32_t first = 0, behind = 0;  // of ids(): the tokens that end here
  };
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<int32_t>& ids() const { return ids_; }
  /// Of each node, the bytes of the longest token that ends there or below.
  const std::vector<uint16_t>& reach() const { return reach_; }
  /// Of each node, the bytes of all edges that hang below it.
  const std::vector<ByteSet>& below() const { return below_; }
  size_t longest() const { return longest_; }
  /// One more than the largest id.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  /// nullopt for special tokens, ids of none, and those that add nothing.
  const std::optional<std::string>& bytes(int32_t id) const {
    return tokens_[static_cast<size_t>(id)];
  }
  /// What stands for a text by name ("<think>"), special or not.
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
