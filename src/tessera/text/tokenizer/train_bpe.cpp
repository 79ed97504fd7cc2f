#include "tessera/text/tokenizer/train_bpe.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <unordered_set>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/byte_level.h"
#include "tessera/text/tokenizer_files/tokenizer_json_parts.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

using spec::Json;

using TokenPair = std::pair<int32_t, int32_t>;
struct PairHash {
  size_t operator()(const TokenPair& pair) const {
    return std::hash<uint64_t>()((static_cast<uint64_t>(pair.first) << 32) |
                                 static_cast<uint32_t>(pair.second));
  }
};

struct Candidate {
  TokenPair pair;
  int64_t count;
  /// Most frequent first; ties go to the pair of the earliest tokens.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Learner {
 public:
  Learner(const WordCounts& counts, const std::vector<std::string>& special)
      : n_special_(std::ssize(special)) {
    for (const std::string& token : special) add_token(token);
    // in the order of the characters, which differs from that of their UTF-8 nowhere
    std::set<std::string> alphabet(byte_characters().begin(), byte_characters().end());
    for (const std::string& token : alphabet) add_token(token);
    for (const auto& [word, count] : counts.words()) {
      Word& w = words_.emplace_back();
      w.count = count;
      for_each_character(word, [&](char32_t, size_t begin, size_t end) {
        w.tokens.push_back(ids_.at(word.substr(begin, end - begin)));
      });
    }
    for (size_t i = 0; i < words_.size(); ++i)
      for (size_t t = 1; t < words_[i].tokens.size(); ++t)
        meet({words_[i].tokens[t - 1], words_[i].tokens[t]}, i);
    for (const auto& [pair, place] : pairs_) queue_.push({pair, place.count});
  }

  int64_t size() const { return std::ssize(tokens_); }

  /// Adds one token; false if no pair is frequent enough.
  bool merge(int64_t least_count) {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const int64_t now = pairs_.at(best.pair).count;
      if (now != best.count) {
        if (now > 0) queue_.push({best.pair, now});
        continue;
      }
      if (now < std::max<int64_t>(1, least_count)) return false;
      if (is_special(best.pair)) continue;
      join(best.pair);
      return true;
    }
    return false;
  }

  Json tokenizer() const {
    Json added = Json::array(), merges = Json::array();
    for (int64_t id = 0; id < n_special_; ++id)
      added.push_back(added_token_json(id, tokens_[static_cast<size_t>(id)], true));
    for (const auto& [a, b] : merges_)
      merges.push_back({tokens_[static_cast<size_t>(a)], tokens_[static_cast<size_t>(b)]});
    Json out = empty_tokenizer_json(std::move(added));
    out["pre_tokenizer"] = out["decoder"] = byte_level_json(true);
    out["model"] = bpe_json(vocabulary_json(tokens_), std::move(merges));
    return out;
  }

 private:
  struct Word {
    std::vector<int32_t> tokens;
    int64_t count = 0;
  };
  struct PairUse {
    int64_t count = 0;
    std::unordered_set<size_t> words;  // words with the pair, now or earlier
  };

  int32_t add_token(const std::string& text) {
    const auto [found, is_new] = ids_.try_emplace(text, static_cast<int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(text);
    return found->second;
  }
  std::string text_of(const TokenPair& pair) const {
    return tokens_[static_cast<size_t>(pair.first)] + tokens_[static_cast<size_t>(pair.second)];
  }
  /// True if the merged word equals a special token, which is never text.
  bool is_special(const TokenPair& pair) const {
    const auto found = ids_.find(text_of(pair));
    return found != ids_.end() && found->second < n_special_;
  }
  void meet(const TokenPair& pair, size_t word) {
    PairUse& place = pairs_[pair];
    place.count += words_[word].count;
    place.words.insert(word);
  }

  void join(const TokenPair& pair) {
    const int32_t joined = add_token(text_of(pair));
    merges_.push_back(pair);
    std::set<TokenPair> risen;
    const std::unordered_set<size_t> places = std::move(pairs_.at(pair).words);
    for (const size_t at : places) {
      Word& word = words_[at];
      std::vector<int32_t> tokens;
      for (size_t t = 0; t < word.tokens.size(); ++t) {
        const bool here = t + 1 < word.tokens.size() && word.tokens[t] == pair.first &&
                          word.tokens[t + 1] == pair.second;
        tokens.push_back(here ? joined : word.tokens[t]);
        if (here) ++t;
      }
      if (tokens.size() == word.tokens.size()) continue;
      for (size_t t = 1; t < word.tokens.size(); ++t)
        pairs_.at({word.tokens[t - 1], word.tokens[t]}).count -= word.count;
      word.tokens = std::move(tokens);
      for (size_t t = 1; t < word.tokens.size(); ++t) {
        const TokenPair met = {word.tokens[t - 1], word.tokens[t]};
        meet(met, at);
        if (met.first == joined || met.second == joined) risen.insert(met);
      }
    }
    for (const TokenPair& met : risen) queue_.push({met, pairs_.at(met).count});
  }

  int64_t n_special_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<Word> words_;
  std::unordered_map<TokenPair, PairUse, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<TokenPair> merges_;
};

}  // namespace

WordCounts::WordCounts()
    : pre_tokenizer_(make_pre_tokenizer(byte_level_json(true), "byte level")) {}

void WordCounts::add(std::string_view text) {
  Pieces pieces;
  if (!text.empty()) pieces.list.push_back({.text = text, .at_start = true});
  pre_tokenizer_->apply(pieces);
  for (const Piece& piece : pieces.list) ++words_[std::string(piece.text)];
}

Json train_bpe(const WordCounts& counts,
               const LearnBpeOptions& options,
               const CancelToken* cancel) {
  std::set<std::string> seen;
  for (const std::string& token : options.special)
    if (token.empty() || !is_valid_utf8(token) || !seen.insert(token).second ||
        (character_length(token, 0) == token.size() &&
         byte_of_character(code_point_at(token, 0, token.size()))))
      fail(ErrorKind::usage, "special",
           "found \"{}\"; expected names of some characters, each once", to_valid_utf8(token));
  const int64_t least = 256 + std::ssize(options.special);
  if (options.vocabulary < least || options.vocabulary > static_cast<int64_t>(kMaxTokens))
    fail(ErrorKind::usage, "vocabulary",
         "{} tokens; expected {} to {}: the 256 bytes and {} special tokens are among them",
         options.vocabulary, least, kMaxTokens, options.special.size());
  Learner learner(counts, options.special);
  while (learner.size() < options.vocabulary && learner.merge(options.least_count)) {
    if (cancel != nullptr) cancel->check("tokenizer");
    if (options.progress) options.progress(learner.size(), options.vocabulary);
  }
  return learner.tokenizer();
}

}  // namespace tessera::text
