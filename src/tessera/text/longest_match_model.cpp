#include "tessera/text/longest_match_model.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::text {
namespace {

/// A tree whose edges are bytes; the children of a node lie side by side, in the order of theirs.
class ByteTree {
 public:
  struct Match {
    int32_t id = kNoToken;
    size_t size = 0;
  };

  explicit ByteTree(const Vocabulary& vocabulary) {
    std::vector<Token> tokens;
    for (int32_t id = 0; id < vocabulary.size(); ++id)
      if (const auto text = vocabulary.token(id); text && !text->empty())
        tokens.push_back({*text, id});
    std::sort(tokens.begin(), tokens.end(),
              [](const Token& a, const Token& b) { return a.text < b.text; });
    std::vector<Range> ranges = {{0, tokens.size(), 0}};  // of each node, the tokens below it
    nodes_.emplace_back();
    for (size_t at = 0; at < nodes_.size(); ++at) {
      auto [begin, end, depth] = ranges[at];
      // the shortest comes first, and ends here
      if (begin < end && tokens[begin].text.size() == depth) nodes_[at].id = tokens[begin++].id;
      nodes_[at].first = nodes_.size();
      while (begin < end) {
        const auto byte = static_cast<uint8_t>(tokens[begin].text[depth]);
        size_t behind = begin;
        while (behind < end && static_cast<uint8_t>(tokens[behind].text[depth]) == byte) ++behind;
        nodes_.push_back({.byte = byte});
        ranges.push_back({begin, behind, depth + 1});
        begin = behind;
      }
      nodes_[at].end = nodes_.size();
    }
    for (size_t child = nodes_[0].first; child < nodes_[0].end; ++child)
      begins_[nodes_[child].byte] = child;
  }

  bool begins(uint8_t byte) const { return nodes_[begins_[byte]].id != kNoToken; }

  /// The longest token that begins the text, which is not empty.
  Match longest(std::string_view text) const {
    Match match;
    size_t at = begins_[static_cast<uint8_t>(text[0])];
    for (size_t size = 1; at != 0; ++size) {
      if (nodes_[at].id != kNoToken) match = {nodes_[at].id, size};
      if (size == text.size()) break;
      at = child(nodes_[at], static_cast<uint8_t>(text[size]));
    }
    return match;
  }

 private:
  struct Token {
    std::string_view text;
    int32_t id;
  };
  struct Range {
    size_t begin, end, depth;
  };
  struct Node {
    uint8_t byte = 0;
    int32_t id = kNoToken;      // the token that ends here
    size_t first = 0, end = 0;  // children
  };

  /// 0, the root, where there is none.
  size_t child(const Node& node, uint8_t byte) const {
    const auto end = nodes_.begin() + static_cast<std::ptrdiff_t>(node.end);
    const auto found =
        std::lower_bound(nodes_.begin() + static_cast<std::ptrdiff_t>(node.first), end, byte,
                         [](const Node& a, uint8_t wanted) { return a.byte < wanted; });
    return found != end && found->byte == byte ? static_cast<size_t>(found - nodes_.begin()) : 0;
  }

  std::vector<Node> nodes_;
  std::array<size_t, 256> begins_ = {};  // the root's children
};

class LongestMatchModel final : public Model {
 public:
  LongestMatchModel(VocabularyPointer vocabulary, int32_t unk, const std::string& where)
      : vocabulary_(std::move(vocabulary)), tree_(*vocabulary_), unk_(unk) {
    if (unk_ != kNoToken) return;
    for (int byte = 0; byte < 256; ++byte)
      if (!tree_.begins(static_cast<uint8_t>(byte)))
        fail(ErrorKind::file, where,
             "no unknown token, and none of the byte 0x{:02X} alone; a text could not be encoded",
             byte);
  }

  const Vocabulary& vocabulary() const override { return *vocabulary_; }

  void encode(std::span<const Piece> pieces, std::vector<int32_t>& ids) const override {
    for (const Piece& piece : pieces) {
      if (piece.id != kNoToken) {
        ids.push_back(piece.id);
        continue;
      }
      for (size_t at = 0; at < piece.text.size();) {
        const ByteTree::Match match = tree_.longest(piece.text.substr(at));
        ids.push_back(match.size > 0 ? match.id : unk_);
        at += std::max(match.size, size_t{1});
      }
    }
  }

 private:
  VocabularyPointer vocabulary_;
  ByteTree tree_;
  int32_t unk_;
};

}  // namespace

ModelPointer make_longest_match_model(VocabularyPointer vocabulary,
                                      int32_t unk,
                                      const std::string& where) {
  return std::make_shared<LongestMatchModel>(std::move(vocabulary), unk, where);
}

}  // namespace tessera::text
