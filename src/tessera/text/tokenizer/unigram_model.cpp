#include "tessera/text/tokenizer/unigram_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/piece_cuts.h"
#include "tessera/text/tokenizer/prefix_trie.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

constexpr double kUnknownPenalty = 10;  // SentencePiece's, in units of log-probability

class UnigramModel final : public Model {
 public:
  UnigramModel(VocabularyPointer vocabulary,
               std::vector<double> scores,
               UnigramOptions options,
               const std::string& where)
      : vocabulary_(std::move(vocabulary)),
        scores_(std::move(scores)),
        options_(std::move(options)),
        trie_(*vocabulary_, options_.from_text, where) {
    if (options_.byte_fallback) byte_tokens_ = vocabulary_->byte_tokens();
    double least = std::numeric_limits<double>::infinity();
    for (int32_t id = 0; id < vocabulary_->size(); ++id)
      if (vocabulary_->token(id)) least = std::min(least, scores_[static_cast<size_t>(id)]);
    unk_score_ = options_.unk_score.value_or(least - kUnknownPenalty);
  }

  const Vocabulary& vocabulary() const override { return *vocabulary_; }

  void encode(std::span<const Piece> pieces, std::vector<int32_t>& ids) const override {
    PieceCache cache;
    Work work;
    encode_each(pieces, ids, [&](std::string_view text) {
      cache.encode_once(text, ids, [&] { encode_piece(text, work, ids); });
    });
  }

 private:
  // The best segmentation of the text up to here: its score, and its last token.
  struct Best {
    double score = 0;
    int32_t size = 0;  // bytes of the token; 0 = unreachable so far
    int32_t id = kNoToken;
  };
  struct Work {
    std::vector<Best> best;  // by end position in bytes, relative to `base`
    std::vector<Best> path;
    size_t base = 0;
    size_t unknown_begin = 0, unknown_end = 0;  // a run that may grow
  };

  void encode_piece(std::string_view piece, Work& work, std::vector<int32_t>& ids) const {
    work.best.assign(1, {});
    work.base = work.unknown_begin = work.unknown_end = 0;
    for (size_t at = 0; at < piece.size();) {
      // all segmentations pass through here if no token so far reaches further; its score is
      // carried over
      if (at == work.base + work.best.size() - 1) pass(piece, at, work, ids);
      const double here = work.best[at - work.base].score;
      const size_t length = std::max<size_t>(character_length(piece, at), 1);
      bool single = false;
      trie_.prefixes(piece.substr(at), [&](size_t size, int32_t id) {
        propose(work, at + size,
                {here + scores_[static_cast<size_t>(id)], static_cast<int32_t>(size), id});
        single = single || size == length;
      });
      if (!single &&
          propose(work, at + length,
                  {here + unk_score_, static_cast<int32_t>(length), options_.unk}) &&
          options_.unk == kNoToken)
        fail(ErrorKind::input, "tokenizer",
             "no token is \"{}\", and the tokenizer has none for what is unknown",
             piece.substr(at, length));
      at += length;
    }
    pass(piece, piece.size(), work, ids);
    end_unknown(piece, work, ids);
  }

  static bool propose(Work& work, size_t end, const Best& candidate) {
    const size_t index = end - work.base;
    if (index >= work.best.size()) work.best.resize(index + 1);
    Best& best = work.best[index];
    if (best.size != 0 && !(candidate.score > best.score)) return false;
    best = candidate;
    return true;
  }

  // Appends the tokens of the best segmentation from the base to `end`, which becomes the base.
  void pass(std::string_view piece, size_t end, Work& work, std::vector<int32_t>& ids) const {
    work.path.clear();
    for (size_t at = end - work.base; at > 0;) {
      const Best& best = work.best[at];
      work.path.push_back(best);
      at -= static_cast<size_t>(best.size);
    }
    size_t at = work.base;
    for (size_t i = work.path.size(); i-- > 0;) {
      const auto size = static_cast<size_t>(work.path[i].size);
      if (work.path[i].id == options_.unk) {
        if (work.unknown_begin == work.unknown_end) work.unknown_begin = at;
        work.unknown_end = at + size;
      } else {
        end_unknown(piece, work, ids);
        ids.push_back(work.path[i].id);
      }
      at += size;
    }
    const double score = work.best[end - work.base].score;
    work.best.assign(1, {score, 0, kNoToken});
    work.base = end;
  }

  void end_unknown(std::string_view piece, Work& work, std::vector<int32_t>& ids) const {
    if (work.unknown_begin == work.unknown_end) return;
    const std::string_view text =
        piece.substr(work.unknown_begin, work.unknown_end - work.unknown_begin);
    work.unknown_begin = work.unknown_end = 0;
    // with positive scores, unknown characters can beat the token that they form together
    if (const int32_t id = vocabulary_->id(text); id != kNoToken && is_from_text(id)) {
      ids.push_back(id);
    } else if (options_.byte_fallback && std::all_of(text.begin(), text.end(), [&](char byte) {
                 return byte_tokens_[static_cast<uint8_t>(byte)] != kNoToken;
               })) {
      for (const char byte : text) ids.push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
    } else {
      ids.push_back(options_.unk);
    }
  }

  bool is_from_text(int32_t id) const {
    return options_.from_text.empty() || options_.from_text[static_cast<size_t>(id)];
  }

  VocabularyPointer vocabulary_;
  std::vector<double> scores_;
  UnigramOptions options_;
  PrefixTrie trie_;
  std::vector<int32_t> byte_tokens_;
  double unk_score_ = 0;
};

}  // namespace

ModelPointer make_unigram_model(VocabularyPointer vocabulary,
                                std::vector<double> scores,
                                UnigramOptions options,
                                const std::string& where) {
  const auto n = static_cast<size_t>(vocabulary->size());
  if (scores.size() != n) fail(ErrorKind::file, where, "{} scores for {} tokens", scores.size(), n);
  const auto bad =
      std::find_if(scores.begin(), scores.end(), [](double s) { return !std::isfinite(s); });
  if (bad != scores.end())
    fail(ErrorKind::file, where, "the score of token {} is {}; expected a finite number",
         bad - scores.begin(), *bad);
  if (options.unk != kNoToken && !vocabulary->token(options.unk))
    fail(ErrorKind::file, where, "unk_id = {}; expected the id of a token, 0 to {}", options.unk,
         n == 0 ? 0 : n - 1);
  if (!options.from_text.empty()) options.from_text.resize(n, true);
  return std::make_shared<UnigramModel>(std::move(vocabulary), std::move(scores),
                                        std::move(options), where);
}

}  // namespace tessera::text
