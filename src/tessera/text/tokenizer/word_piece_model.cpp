#include "tessera/text/tokenizer/word_piece_model.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/text/tokenizer/piece_cuts.h"
#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

// matching is quadratic in this at worst
constexpr int64_t kMaxWordCharacters = 1000;

struct Token {
  std::string_view text;
  int32_t id;
};
using Tokens = std::span<const Token>;  // sorted by text

int byte_at(const Token& token, size_t depth) {
  return depth < token.text.size() ? static_cast<uint8_t>(token.text[depth]) : -1;
}

// Of `tokens`, which agree before `depth`, those that have `byte` there.
Tokens narrowed(Tokens tokens, size_t depth, char byte) {
  const int wanted = static_cast<uint8_t>(byte);
  const auto first = std::lower_bound(
      tokens.begin(), tokens.end(), wanted,
      [depth](const Token& token, int value) { return byte_at(token, depth) < value; });
  const auto last = std::upper_bound(
      first, tokens.end(), wanted,
      [depth](int value, const Token& token) { return value < byte_at(token, depth); });
  return {first, last};
}

class WordPieceModel final : public Model {
 public:
  WordPieceModel(VocabularyPointer vocabulary, const WordPieceOptions& options)
      : vocabulary_(std::move(vocabulary)),
        unk_(vocabulary_->id(options.unk_token)),
        prefix_(options.continuing_subword_prefix.size()),
        max_characters_(static_cast<size_t>(options.max_input_chars_per_word)) {
    for (int32_t id = 0; id < vocabulary_->size(); ++id)
      if (const auto text = vocabulary_->token(id)) tokens_.push_back({*text, id});
    std::sort(tokens_.begin(), tokens_.end(),
              [](const Token& a, const Token& b) { return a.text < b.text; });
    continuing_ = tokens_;
    for (size_t i = 0; i < prefix_; ++i)
      continuing_ = narrowed(continuing_, i, options.continuing_subword_prefix[i]);
  }

  const Vocabulary& vocabulary() const override { return *vocabulary_; }

  void encode(std::span<const Piece> pieces, std::vector<int32_t>& ids) const override {
    PieceCache cache;
    encode_each(pieces, ids, [&](std::string_view text) {
      cache.encode_once(text, ids, [&] { encode_word(text, ids); });
    });
  }

 private:
  struct Match {
    int32_t id = kNoToken;
    size_t size = 0;
  };

  void encode_word(std::string_view word, std::vector<int32_t>& ids) const {
    const size_t before = ids.size();
    bool known = !is_too_long(word);
    for (size_t at = 0; known && at < word.size();) {
      const Match match =
          at == 0 ? longest(word, tokens_, 0) : longest(word.substr(at), continuing_, prefix_);
      known = match.size > 0;
      ids.push_back(match.id);
      at += match.size;
    }
    if (known) return;
    ids.resize(before);
    ids.push_back(unk_);
  }

  bool is_too_long(std::string_view word) const {
    if (word.size() <= max_characters_) return false;
    size_t n = 0;
    for_each_character(word, [&](char32_t, size_t, size_t) { ++n; });
    return n > max_characters_;
  }

  // The longest token whose text, from `depth` on, begins `text` and ends with a character of it.
  static Match longest(std::string_view text, Tokens tokens, size_t depth) {
    Match match;
    for (size_t at = 0; at < text.size(); ++at) {
      tokens = narrowed(tokens, depth + at, text[at]);
      if (tokens.empty()) break;
      if (tokens.front().text.size() == depth + at + 1) match = {tokens.front().id, at + 1};
    }
    return match;
  }

  VocabularyPointer vocabulary_;
  int32_t unk_;
  size_t prefix_;
  size_t max_characters_;
  std::vector<Token> tokens_;
  Tokens continuing_;
};

}  // namespace

ModelPointer make_word_piece_model(VocabularyPointer vocabulary,
                                   const WordPieceOptions& options,
                                   const std::string& where) {
  if (vocabulary->id(options.unk_token) == kNoToken)
    fail(ErrorKind::file, where, "unk_token \"{}\" is not in the vocabulary",
         options.unk_token.substr(0, 50));
  if (options.max_input_chars_per_word < 0 || options.max_input_chars_per_word > kMaxWordCharacters)
    fail(ErrorKind::file, where, "max_input_chars_per_word = {}; expected 0 to {}",
         options.max_input_chars_per_word, kMaxWordCharacters);
  return std::make_shared<WordPieceModel>(std::move(vocabulary), options);
}

}  // namespace tessera::text
