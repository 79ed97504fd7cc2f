// A trie of tokens by bytes, for models that need all tokens that are prefixes of a text.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer/model.h"

namespace tessera::text {

/// Children of a node are adjacent and sorted by byte.
class PrefixTrie {
 public:
  /// Tokens with a text, restricted to ids in `of` (empty = all). Copies the texts. Throws
  /// Error(file) naming `where` for tokens of more than 1 GiB in total.
  PrefixTrie(const Vocabulary& vocabulary, const std::vector<bool>& of, const std::string& where);

  /// Calls visit(size, id) for each token that is a prefix of `text`, which must not be empty;
  /// shorter tokens first.
  template <class Visit>
  void prefixes(std::string_view text, Visit&& visit) const {
    uint32_t at = roots_[static_cast<uint8_t>(text[0])];
    for (size_t size = 1; at != 0; ++size) {
      const Node& node = nodes_[at];
      if (node.id != kNoToken) visit(size, node.id);
      if (size == text.size() || node.count == 0) return;
      const char* labels = labels_.data() + node.first;
      const void* found = std::memchr(labels, static_cast<uint8_t>(text[size]), node.count);
      if (found == nullptr) return;
      at = node.first + static_cast<uint32_t>(static_cast<const char*>(found) - labels);
    }
  }

 private:
  struct Node {
    uint32_t first = 0;  // child
    int32_t id = kNoToken;
    uint16_t count = 0;  // of children
  };
  std::vector<Node> nodes_;
  std::vector<char> labels_;  // of each node, the byte of its edge
  std::array<uint32_t, 256> roots_{};
};

}  // namespace tessera::text
