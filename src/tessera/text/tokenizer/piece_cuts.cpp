#include "tessera/text/tokenizer/piece_cuts.h"

namespace tessera::text {
namespace {

constexpr size_t kMaxPieces = 1 << 16;
constexpr size_t kMaxPieceBytes = 256;  // longer ones rarely come twice

}  // namespace

void JoinablePairs::add(std::string_view token) {
  char32_t previous = 0;
  for_each_character(token, [&](char32_t c, size_t at, size_t) {
    if (at > 0) {
      if (previous < kSmall && c < kSmall) {
        small_[previous * kSmall + c] = true;
      } else {
        large_.push_back(key(previous, c));
      }
    }
    previous = c;
  });
}

void JoinablePairs::seal() {
  std::sort(large_.begin(), large_.end());
  large_.erase(std::unique(large_.begin(), large_.end()), large_.end());
  large_.shrink_to_fit();
}

bool PieceCache::append(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() > kMaxPieceBytes) return false;
  const auto found = found_.find(piece);
  if (found == found_.end()) return false;
  const auto [begin, count] = found->second;
  ids.insert(ids.end(), ids_.begin() + begin, ids_.begin() + begin + count);
  return true;
}

void PieceCache::remember(std::string_view piece, std::span<const int32_t> ids) {
  if (piece.size() > kMaxPieceBytes || found_.size() >= kMaxPieces) return;
  const auto begin = static_cast<uint32_t>(ids_.size());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  found_.emplace(piece, std::pair(begin, static_cast<uint32_t>(ids.size())));
}

}  // namespace tessera::text
