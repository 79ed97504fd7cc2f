#include "tessera/text/tokenizer/model.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::text {
namespace {

// Real vocabularies leave few ids unused; a hostile one could ask for a table of any size.
size_t largest_id(size_t n_tokens) {
  return std::min(kMaxTokens, 2 * n_tokens + 65536);
}

}  // namespace

Vocabulary::Vocabulary(std::vector<std::pair<std::string, int64_t>> tokens,
                       const std::string& where) {
  if (tokens.size() > kMaxTokens)
    fail(ErrorKind::file, where, "{} tokens; at most {} are read", tokens.size(), kMaxTokens);
  int64_t largest = -1;
  for (const auto& [token, id] : tokens) {
    if (id < 0 || id > static_cast<int64_t>(largest_id(tokens.size())))
      fail(ErrorKind::file, where, "token \"{}\" has id {}; expected 0 to {} with {} tokens",
           token.substr(0, 50), id, largest_id(tokens.size()), tokens.size());
    if (token.size() > kMaxTokenBytes)
      fail(ErrorKind::file, where, "token {} has {} bytes; at most {} are read", id, token.size(),
           kMaxTokenBytes);
    largest = std::max(largest, id);
  }
  tokens_.resize(static_cast<size_t>(largest + 1));
  present_.resize(tokens_.size());
  ids_.reserve(tokens.size());
  for (auto& [token, id] : tokens) {
    const auto index = static_cast<size_t>(id);
    if (present_[index])
      fail(ErrorKind::file, where, "id {} has two tokens, \"{}\" and \"{}\"", id,
           tokens_[index].substr(0, 50), token.substr(0, 50));
    present_[index] = true;
    tokens_[index] = std::move(token);
    longest_ = std::max(longest_, tokens_[index].size());
    if (!ids_.emplace(tokens_[index], static_cast<int32_t>(id)).second)
      fail(ErrorKind::file, where, "token \"{}\" has two ids, {} and {}",
           tokens_[index].substr(0, 50), ids_.at(tokens_[index]), id);
  }
}

int32_t Vocabulary::id(std::string_view token) const {
  if (token.size() > longest_) return kNoToken;
  const auto found = ids_.find(token);
  return found == ids_.end() ? kNoToken : found->second;
}

std::optional<std::string_view> Vocabulary::token(int32_t id) const {
  if (id < 0 || id >= size() || !present_[static_cast<size_t>(id)]) return std::nullopt;
  return tokens_[static_cast<size_t>(id)];
}

std::vector<int32_t> Vocabulary::byte_tokens() const {
  std::vector<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) ids.push_back(id(fmt::format("<0x{:02X}>", byte)));
  return ids;
}

}  // namespace tessera::text
