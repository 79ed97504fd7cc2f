#include "tessera/text/tokenizer/sentencepiece_bpe.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/piece_cuts.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

struct ScoreSymbol {
  int32_t begin;
  int32_t size;  // 0 once it is part of its left neighbour
  int32_t previous;
  int32_t next;
};

struct ScoreCandidate {
  float score;
  int32_t left;
  int32_t size;  // of the joined text; tells whether the pair is still the one that was meant
  bool operator<(const ScoreCandidate& other) const {  // the heap's top is the largest
    return score != other.score ? score < other.score : left > other.left;
  }
};

class ScoreModel final : public Model {
 public:
  ScoreModel(VocabularyPointer vocabulary, std::vector<float> scores, ScoreOptions options)
      : vocabulary_(std::move(vocabulary)),
        scores_(std::move(scores)),
        options_(std::move(options)),
        byte_tokens_(vocabulary_->byte_tokens()) {
    for (int32_t id = 0; id < vocabulary_->size(); ++id)
      if (const auto token = vocabulary_->token(id); token && id_from_text(*token) == id)
        pairs_.add(*token);
    pairs_.seal();
  }

  const Vocabulary& vocabulary() const override { return *vocabulary_; }

  void encode(std::span<const Piece> pieces, std::vector<int32_t>& ids) const override {
    PieceCache cache;
    Work work;
    encode_each(pieces, ids, [&](std::string_view text) {
      const auto before = static_cast<std::ptrdiff_t>(ids.size());
      for_each_part(
          text, pairs_, [](auto, auto) { return true; },
          [&](std::string_view part) {
            cache.encode_once(part, ids, [&] { encode_part(part, work, ids); });
          });
      if (!options_.fuse_unknown) return;
      const auto both_unknown = [&](int32_t a, int32_t b) { return a == b && a == options_.unk; };
      ids.erase(std::unique(ids.begin() + before, ids.end(), both_unknown), ids.end());
    });
  }

 private:
  struct Work {
    std::string_view piece;
    std::vector<ScoreSymbol> symbols;
    std::vector<ScoreCandidate> heap;
  };

  void encode_part(std::string_view part, Work& work, std::vector<int32_t>& ids) const {
    split_characters(part, work);
    for (int32_t i = 0; i + 1 < static_cast<int32_t>(work.symbols.size()); ++i) propose(work, i);
    while (!work.heap.empty()) {
      std::pop_heap(work.heap.begin(), work.heap.end());
      const ScoreCandidate best = work.heap.back();
      work.heap.pop_back();
      apply(work, best);
    }
    for (const ScoreSymbol& symbol : work.symbols)
      if (symbol.size > 0) append(text_of(work, symbol), ids);
  }

  static std::string_view text_of(const Work& work, const ScoreSymbol& symbol) {
    return work.piece.substr(static_cast<size_t>(symbol.begin), static_cast<size_t>(symbol.size));
  }

  int32_t id_from_text(std::string_view text) const {
    const int32_t id = vocabulary_->id(text);
    if (id == kNoToken || options_.from_text.empty()) return id;
    return options_.from_text[static_cast<size_t>(id)] ? id : kNoToken;
  }

  static void split_characters(std::string_view piece, Work& work) {
    work.piece = piece;
    work.symbols.clear();
    for_each_character(piece, [&](char32_t, size_t begin, size_t end) {
      const auto at = static_cast<int32_t>(work.symbols.size());
      if (at > 0) work.symbols.back().next = at;
      work.symbols.push_back(
          {static_cast<int32_t>(begin), static_cast<int32_t>(end - begin), at - 1, -1});
    });
  }

  void propose(Work& work, int32_t position) const {
    const ScoreSymbol& left = work.symbols[static_cast<size_t>(position)];
    if (left.next < 0) return;
    const ScoreSymbol& right = work.symbols[static_cast<size_t>(left.next)];
    if (!options_.join_unknown && (id_from_text(text_of(work, left)) == kNoToken ||
                                   id_from_text(text_of(work, right)) == kNoToken))
      return;
    const auto size = static_cast<size_t>(left.size + right.size);
    const int32_t id = id_from_text(work.piece.substr(static_cast<size_t>(left.begin), size));
    if (id == kNoToken) return;
    work.heap.push_back({scores_[static_cast<size_t>(id)], position, static_cast<int32_t>(size)});
    std::push_heap(work.heap.begin(), work.heap.end());
  }

  void apply(Work& work, const ScoreCandidate& candidate) const {
    ScoreSymbol& left = work.symbols[static_cast<size_t>(candidate.left)];
    if (left.size == 0 || left.next < 0) return;
    ScoreSymbol& right = work.symbols[static_cast<size_t>(left.next)];
    if (left.size + right.size != candidate.size) return;
    left.size = candidate.size;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) work.symbols[static_cast<size_t>(left.next)].previous = candidate.left;
    if (left.previous >= 0) propose(work, left.previous);
    propose(work, candidate.left);
  }

  void append(std::string_view text, std::vector<int32_t>& ids) const {
    if (const int32_t id = id_from_text(text); id != kNoToken) {
      ids.push_back(id);
      return;
    }
    const bool by_bytes = std::all_of(text.begin(), text.end(), [&](char byte) {
      return byte_tokens_[static_cast<uint8_t>(byte)] != kNoToken;
    });
    if (!by_bytes) {
      ids.push_back(options_.unk);
      return;
    }
    for (const char byte : text) ids.push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
  }

  VocabularyPointer vocabulary_;
  std::vector<float> scores_;
  ScoreOptions options_;
  JoinablePairs pairs_;
  std::vector<int32_t> byte_tokens_;
};

}  // namespace

ModelPointer make_score_model(VocabularyPointer vocabulary,
                              std::vector<float> scores,
                              ScoreOptions options,
                              const std::string& where) {
  const auto n = static_cast<size_t>(vocabulary->size());
  if (scores.size() != n) fail(ErrorKind::file, where, "{} scores for {} tokens", scores.size(), n);
  const auto bad =
      std::find_if(scores.begin(), scores.end(), [](float s) { return std::isnan(s); });
  if (bad != scores.end())
    fail(ErrorKind::file, where, "the score of token {} is not a number", bad - scores.begin());
  if (!options.from_text.empty()) options.from_text.resize(n, true);
  const std::vector<int32_t> bytes = vocabulary->byte_tokens();
  if (options.unk == kNoToken && std::find(bytes.begin(), bytes.end(), kNoToken) != bytes.end())
    fail(ErrorKind::file, where,
         "no unknown token, and no byte token <0x{:02X}>; a text could not be encoded",
         std::find(bytes.begin(), bytes.end(), kNoToken) - bytes.begin());
  return std::make_shared<ScoreModel>(std::move(vocabulary), std::move(scores), std::move(options));
}

}  // namespace tessera::text
