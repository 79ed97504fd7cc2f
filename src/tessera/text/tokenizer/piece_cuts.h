// Exact shortcuts of tokenization: positions where a long piece can be cut without changing its
// tokens, and a cache of encoded pieces.
#pragma once

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/text/tokenizer/model.h"
#include "tessera/text/utf8.h"

namespace tessera::text {

/// Pairs of characters that are adjacent in some token that merging can produce. Text may be cut
/// between any other two characters: no token spans them, so both sides are independent.
class JoinablePairs {
 public:
  void add(std::string_view token);
  /// Call once after the last add().
  void seal();
  bool contains(char32_t left, char32_t right) const {
    if (left < kSmall && right < kSmall) return small_[left * kSmall + right];
    return std::binary_search(large_.begin(), large_.end(), key(left, right));
  }

 private:
  static constexpr char32_t kSmall = 256;
  static uint64_t key(char32_t left, char32_t right) { return (uint64_t{left} << 32) | right; }
  std::bitset<kSmall * kSmall> small_;
  std::vector<uint64_t> large_;
};

/// Calls visit(part) for the parts of `piece` between cuts. `is_cut(left, right)` is called with
/// the texts of two neighbours that are not joinable, and may reject the cut.
template <class IsCut, class Visit>
void for_each_part(std::string_view piece,
                   const JoinablePairs& pairs,
                   IsCut&& is_cut,
                   Visit&& visit) {
  size_t begin = 0;
  size_t before = 0;
  char32_t previous = 0;
  for_each_character(piece, [&](char32_t c, size_t at, size_t end) {
    if (at > 0 && !pairs.contains(previous, c) &&
        is_cut(piece.substr(before, at - before), piece.substr(at, end - at))) {
      visit(piece.substr(begin, at - begin));
      begin = at;
    }
    before = at;
    previous = c;
  });
  if (begin < piece.size()) visit(piece.substr(begin));
}

/// Appends tokens found before; encode(text) appends those of the other pieces.
template <class Encode>
void encode_each(std::span<const Piece> pieces, std::vector<int32_t>& ids, Encode&& encode) {
  for (const Piece& piece : pieces) {
    if (piece.id != kNoToken)
      ids.push_back(piece.id);
    else
      encode(piece.text);
  }
}

/// Cache of encoded pieces with bounded size. Lives as long as one call, so it needs no lock.
class PieceCache {
 public:
  /// Appends the ids that encode() appends, called once for equal pieces. `piece` must outlive the
  /// cache.
  template <class Encode>
  void encode_once(std::string_view piece, std::vector<int32_t>& ids, Encode&& encode) {
    if (append(piece, ids)) return;
    const size_t before = ids.size();
    encode();
    remember(piece, std::span<const int32_t>(ids).subspan(before));
  }

 private:
  bool append(std::string_view piece, std::vector<int32_t>& ids) const;
  void remember(std::string_view piece, std::span<const int32_t> ids);

  std::unordered_map<std::string_view, std::pair<uint32_t, uint32_t>> found_;  // begin, count
  std::vector<int32_t> ids_;
};

}  // namespace tessera::text
