#include "tessera/text/tokenizer/prefix_trie.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::text {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;

}  // namespace

PrefixTrie::PrefixTrie(const Vocabulary& vocabulary,
                       const std::vector<bool>& of,
                       const std::string& where) {
  struct Token {
    std::string_view text;
    int32_t id;
  };
  std::vector<Token> tokens;
  size_t n_bytes = 0;  // no trie has more nodes
  for (int32_t id = 0; id < vocabulary.size(); ++id)
    if (const auto text = vocabulary.token(id);
        text && !text->empty() && (of.empty() || of[static_cast<size_t>(id)])) {
      tokens.push_back({*text, id});
      n_bytes += text->size();
    }
  if (n_bytes > kMaxBytes)
    fail(ErrorKind::file, where, "tokens of {} bytes in all; at most {} are read", n_bytes,
         kMaxBytes);
  std::sort(tokens.begin(), tokens.end(),
            [](const Token& a, const Token& b) { return a.text < b.text; });
  // node by node in the order of depth: the tokens below the node, and how many bytes they share
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> ranges{{0, tokens.size(), 0}};
  nodes_.push_back({});
  labels_.push_back(0);
  for (size_t at = 0; at < ranges.size(); ++at) {
    auto [begin, end, depth] = ranges[at];
    if (begin < end && tokens[begin].text.size() == depth) nodes_[at].id = tokens[begin++].id;
    nodes_[at].first = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const char byte = tokens[begin].text[depth];
      size_t next = begin;
      while (next < end && tokens[next].text[depth] == byte) ++next;
      ranges.push_back({begin, next, depth + 1});
      nodes_.push_back({});
      labels_.push_back(byte);
      ++nodes_[at].count;
      begin = next;
    }
  }
  for (uint32_t i = 0; i < nodes_[0].count; ++i)
    roots_[static_cast<uint8_t>(labels_[nodes_[0].first + i])] = nodes_[0].first + i;
}

}  // namespace tessera::text
