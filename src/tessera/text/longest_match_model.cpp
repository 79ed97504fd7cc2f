#include "tessera/text/longest_match_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/text/prefix_trie.h"

namespace tessera::text {
namespace {

std::vector<PrefixTrie::Token> tokens_of_bytes(const Vocabulary& vocabulary) {
  std::vector<PrefixTrie::Token> tokens;
  for (int32_t id = 0; id < vocabulary.size(); ++id)
    if (const auto text = vocabulary.token(id); text && !text->empty())
      tokens.push_back({*text, id});
  return tokens;
}

class LongestMatchModel final : public Model {
 public:
  LongestMatchModel(VocabularyPointer vocabulary, int32_t unk, const std::string& where)
      : vocabulary_(std::move(vocabulary)), trie_(tokens_of_bytes(*vocabulary_), where), unk_(unk) {
    if (unk_ != kNoToken) return;
    for (int byte = 0; byte < 256; ++byte)
      if (const char alone = static_cast<char>(byte); longest({&alone, 1}).size == 0)
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
        const Match match = longest(piece.text.substr(at));
        ids.push_back(match.size > 0 ? match.id : unk_);
        at += std::max(match.size, size_t{1});
      }
    }
  }

 private:
  struct Match {
    int32_t id = kNoToken;
    size_t size = 0;
  };
  Match longest(std::string_view text) const {
    Match match;
    trie_.prefixes(text, [&](size_t size, int32_t id) { match = {id, size}; });
    return match;
  }

  VocabularyPointer vocabulary_;
  PrefixTrie trie_;
  int32_t unk_;
};

}  // namespace

ModelPointer make_longest_match_model(VocabularyPointer vocabulary,
                                      int32_t unk,
                                      const std::string& where) {
  return std::make_shared<LongestMatchModel>(std::move(vocabulary), unk, where);
}

}  // namespace tessera::text
