#include "tessera/text/grammar/token_trie.h"

#include <algorithm>
#include <numeric>

namespace tessera::text {

TokenTrie::TokenTrie(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) tokens_.push_back(tokenizer.bytes_of(id));
  build();
}

TokenTrie::TokenTrie(std::vector<std::optional<std::string>> tokens) : tokens_(std::move(tokens)) {
  build();
}

std::optional<int32_t> TokenTrie::named(std::string_view text) const {
  if (tokenizer_) return tokenizer_->id(text);
  for (size_t id = 0; id < tokens_.size(); ++id)
    if (tokens_[id] == text) return static_cast<int32_t>(id);
  return std::nullopt;
}

void TokenTrie::build() {
  // longer tokens are not useful
  constexpr size_t kLongest = 4096;
  std::vector<int32_t> order;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    std::optional<std::string>& token = tokens_[id];
    if (token && (token->empty() || token->size() > kLongest)) token.reset();
    if (token) order.push_back(static_cast<int32_t>(id));
  }
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const int less = bytes(a)->compare(*bytes(b));
    return less != 0 ? less < 0 : a < b;
  });
  std::vector<uint32_t> open;  // path to the last token
  const auto close = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back()) {
      nodes_[open.back()].end = static_cast<uint32_t>(nodes_.size());
      if (open.size() < 2) continue;
      const uint32_t node = open.back(), above = open[open.size() - 2];
      reach_[above] = std::max(reach_[above], reach_[node]);
      below_[above].add(below_[node]);
      below_[above].add(nodes_[node].byte);
    }
  };
  std::string_view before;
  for (const int32_t id : order) {
    const std::string_view token = *bytes(id);
    const auto apart =
        std::mismatch(token.begin(), token.end(), before.begin(), before.end()).first;
    const auto common = static_cast<size_t>(apart - token.begin());
    close(common);
    for (size_t i = common; i < token.size(); ++i) {
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      const auto none = static_cast<uint32_t>(ids_.size());
      nodes_.push_back({static_cast<uint8_t>(token[i]), static_cast<uint16_t>(i), 0, none, none});
      reach_.push_back(static_cast<uint16_t>(i + 1));
      below_.emplace_back();
    }
    ids_.push_back(id);
    nodes_[open.back()].behind = static_cast<uint32_t>(ids_.size());
    longest_ = std::max(longest_, token.size());
    before = token;
  }
  close(0);
}

}  // namespace tessera::text
