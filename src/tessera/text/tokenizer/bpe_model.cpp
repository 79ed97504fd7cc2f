#include "tessera/text/tokenizer/bpe_model.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/piece_cuts.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

struct Merge {
  int32_t right = 0;
  int32_t rank = 0;
  int32_t result = 0;
};

// Merges grouped by their left token and sorted by their right one: binary search in a short range,
// compact, and without a worst case that a file could provoke.
class MergeTable {
 public:
  struct Entry {
    int32_t left;
    Merge merge;
  };

  MergeTable(std::vector<Entry> entries, int32_t n_tokens) {
    const auto key = [](const Entry& e) { return std::tie(e.left, e.merge.right, e.merge.rank); };
    std::sort(entries.begin(), entries.end(),
              [&](const Entry& a, const Entry& b) { return key(a) < key(b); });
    begin_.assign(static_cast<size_t>(n_tokens) + 1, 0);
    for (const Entry& entry : entries) {
      // of equal pairs the last rank is used
      if (!merges_.empty() && last_left_ == entry.left &&
          merges_.back().right == entry.merge.right) {
        merges_.back() = entry.merge;
        continue;
      }
      merges_.push_back(entry.merge);
      last_left_ = entry.left;
      ++begin_[static_cast<size_t>(entry.left) + 1];
    }
    for (size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
  }

  const Merge* find(int32_t left, int32_t right) const {
    const auto first = merges_.begin() + begin_[static_cast<size_t>(left)];
    const auto last = merges_.begin() + begin_[static_cast<size_t>(left) + 1];
    const auto found = std::lower_bound(
        first, last, right, [](const Merge& merge, int32_t id) { return merge.right < id; });
    return found == last || found->right != right ? nullptr : &*found;
  }

 private:
  std::vector<Merge> merges_;
  std::vector<int32_t> begin_;
  int32_t last_left_ = kNoToken;
};

struct BpeSymbol {
  int32_t id;
  int32_t previous;
  int32_t next;
  bool alive;
};

struct BpeCandidate {
  int32_t rank;
  int32_t position;
  int32_t result;
  bool operator>(const BpeCandidate& other) const {
    return std::tie(rank, position) > std::tie(other.rank, other.position);
  }
};

// Shorter pieces are not cut.
constexpr size_t kMinCutBytes = 64;

class BpeModel final : public Model {
 public:
  BpeModel(VocabularyPointer vocabulary,
           MergeTable merges,
           JoinablePairs pairs,
           const BpeOptions& options,
           int32_t unk)
      : vocabulary_(std::move(vocabulary)),
        merges_(std::move(merges)),
        pairs_(std::move(pairs)),
        options_(options),
        unk_(unk),
        byte_tokens_(vocabulary_->byte_tokens()) {}

  const Vocabulary& vocabulary() const override { return *vocabulary_; }

  void encode(std::span<const Piece> pieces, std::vector<int32_t>& ids) const override {
    PieceCache cache;
    Work work;
    encode_each(pieces, ids, [&](std::string_view text) {
      const int32_t id = options_.ignore_merges ? vocabulary_->id(text) : kNoToken;
      if (id != kNoToken) {
        ids.push_back(id);
      } else if (text.size() < kMinCutBytes) {
        encode_part(text, cache, work, ids);
      } else {
        for_each_part(
            text, pairs_, [&](auto left, auto right) { return known(left) && known(right); },
            [&](std::string_view part) { encode_part(part, cache, work, ids); });
      }
    });
  }

 private:
  struct Work {  // kept between pieces for its memory
    std::vector<BpeSymbol> symbols;
    std::vector<BpeCandidate> heap;
  };

  // A run of unknown characters may be dropped or become one token: it is never cut.
  bool known(std::string_view character) const { return vocabulary_->id(character) != kNoToken; }

  void encode_part(std::string_view part,
                   PieceCache& cache,
                   Work& work,
                   std::vector<int32_t>& ids) const {
    cache.encode_once(part, ids, [&] {
      work.symbols.clear();
      add_symbols(part, work.symbols);
      merge_all(work);
      for (const BpeSymbol& symbol : work.symbols)
        if (symbol.alive) ids.push_back(symbol.id);
    });
  }

  static void add(std::vector<BpeSymbol>& symbols, int32_t id) {
    const auto at = static_cast<int32_t>(symbols.size());
    if (at > 0) symbols.back().next = at;
    symbols.push_back({id, at - 1, -1, true});
  }

  void add_symbols(std::string_view piece, std::vector<BpeSymbol>& symbols) const {
    bool pending_unk = false;
    for_each_character(piece, [&](char32_t, size_t begin, size_t end) {
      const std::string_view character = piece.substr(begin, end - begin);
      if (const int32_t id = vocabulary_->id(character); id != kNoToken) {
        if (pending_unk) add(symbols, unk_);
        pending_unk = false;
        add(symbols, id);
      } else if (options_.byte_fallback && has_byte_tokens(character)) {
        for (const char byte : character) add(symbols, byte_tokens_[static_cast<uint8_t>(byte)]);
      } else if (unk_ != kNoToken) {
        if (pending_unk && !options_.fuse_unk) add(symbols, unk_);
        pending_unk = true;
      }
    });
    if (pending_unk) add(symbols, unk_);
  }

  bool has_byte_tokens(std::string_view bytes) const {
    return std::all_of(bytes.begin(), bytes.end(), [&](char byte) {
      return byte_tokens_[static_cast<uint8_t>(byte)] != kNoToken;
    });
  }

  void propose(Work& work, int32_t position) const {
    const BpeSymbol& left = work.symbols[static_cast<size_t>(position)];
    if (left.next < 0) return;
    const Merge* merge = merges_.find(left.id, work.symbols[static_cast<size_t>(left.next)].id);
    if (merge == nullptr) return;
    work.heap.push_back({merge->rank, position, merge->result});
    std::push_heap(work.heap.begin(), work.heap.end(), std::greater<>());
  }

  void merge_all(Work& work) const {
    work.heap.clear();
    const auto n = static_cast<int32_t>(work.symbols.size());
    for (int32_t i = 0; i + 1 < n; ++i) propose(work, i);
    while (!work.heap.empty()) {
      std::pop_heap(work.heap.begin(), work.heap.end(), std::greater<>());
      const BpeCandidate best = work.heap.back();
      work.heap.pop_back();
      apply(work, best);
    }
  }

  // Merges the pair at the candidate's position, unless that pair no longer exists.
  void apply(Work& work, const BpeCandidate& candidate) const {
    BpeSymbol& left = work.symbols[static_cast<size_t>(candidate.position)];
    if (!left.alive || left.next < 0) return;
    BpeSymbol& right = work.symbols[static_cast<size_t>(left.next)];
    const Merge* merge = merges_.find(left.id, right.id);
    if (merge == nullptr || merge->result != candidate.result) return;
    left.id = candidate.result;
    left.next = right.next;
    right.alive = false;
    if (left.next >= 0) work.symbols[static_cast<size_t>(left.next)].previous = candidate.position;
    if (left.previous >= 0) propose(work, left.previous);
    propose(work, candidate.position);
  }

  VocabularyPointer vocabulary_;
  MergeTable merges_;
  JoinablePairs pairs_;
  BpeOptions options_;
  int32_t unk_;
  std::vector<int32_t> byte_tokens_;
};

}  // namespace

ModelPointer make_bpe_model(VocabularyPointer vocabulary,
                            const std::vector<std::pair<std::string, std::string>>& merges,
                            const BpeOptions& options,
                            const std::string& where) {
  if (merges.size() > kMaxTokens)
    fail(ErrorKind::file, where, "{} merges; at most {} are read", merges.size(), kMaxTokens);
  std::vector<MergeTable::Entry> entries;
  entries.reserve(merges.size());
  std::string joined;
  JoinablePairs pairs;
  for (const auto& [left, right] : merges) {
    const auto rank = static_cast<int32_t>(entries.size());
    const auto id_of = [&](std::string_view part) {
      const int32_t id = vocabulary->id(part);
      if (id == kNoToken)
        fail(ErrorKind::file, where, "merge {} (\"{}\" + \"{}\"): \"{}\" is not in the vocabulary",
             rank, left.substr(0, 50), right.substr(0, 50), part.substr(0, 50));
      return id;
    };
    joined.assign(left).append(right);
    entries.push_back({id_of(left), {id_of(right), rank, id_of(joined)}});
    pairs.add(joined);
  }
  pairs.seal();
  int32_t unk = kNoToken;
  if (!options.unk_token.empty()) {
    unk = vocabulary->id(options.unk_token);
    if (unk == kNoToken)
      fail(ErrorKind::file, where, "unk_token \"{}\" is not in the vocabulary",
           options.unk_token.substr(0, 50));
  }
  MergeTable table(std::move(entries), vocabulary->size());
  return std::make_shared<BpeModel>(std::move(vocabulary), std::move(table), std::move(pairs),
                                    options, unk);
}

}  // namespace tessera::text
