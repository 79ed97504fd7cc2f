#include "tessera/text/tokenizer/longest_match_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/piece_cuts.h"
#include "tessera/text/tokenizer/prefix_trie.h"

namespace tessera::text {
namespace {

class LongestMatchModel final : public Model {
 public:
  LongestMatchModel(VocabularyPointer vocabulary, int32_t unk, const std::string& where)
      : vocabulary_(std::move(vocabulary)), trie_(*vocabulary_, {}, where), unk_(unk) {
    if (unk_ != kNoToken) return;
    for (int byte = 0; byte < 256; ++byte)
      if (const char alone = static_cast<char>(byte); longest({&alone, 1}).size == 0)
        fail(ErrorKind::file, where,
             "no unknown token, and none of the byte 0x{:02X} alone; a text could not be encoded",
             byte);
  }

  const Vocabulary& vocabulary() const override { return *vocabulary_; }

  void encode(std::span<const Piece> pieces, std::vector<int32_t>& ids) const override {
    encode_each(pieces, ids, [&](std::string_view text) {
      for (size_t at = 0; at < text.size();) {
        const Match match = longest(text.substr(at));
        ids.push_back(match.size > 0 ? match.id : unk_);
        at += std::max(match.size, size_t{1});
      }
    });
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
