// Corruption of a text whose own tokens are then asked for: masked language modelling (Devlin et
// al. 2019, arXiv:1810.04805, sec. 3.1), of whole words (the same, of 2019-05-31), or of spans of
// words (Joshi et al. 2020, arXiv:1907.10529, sec. 3.1). A pure function of tokens and draws.
// Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/rng.h"
#include "tessera/spec/fields.h"
#include "tessera/text/tokenizer/tokenizer.h"

namespace tessera::train {

enum class MaskCount {
  exact,      // as many of every sample as the rate says
  bernoulli,  // every token by itself
};
enum class MaskUnit {
  token,
  word,
  span,  // of words
};

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::MaskCount> {
  using E = tessera::train::MaskCount;
  static constexpr std::array names{std::pair{E::exact, "exact"},
                                    std::pair{E::bernoulli, "bernoulli"}};
};

template <>
struct tessera::spec::EnumNames<tessera::train::MaskUnit> {
  using E = tessera::train::MaskUnit;
  static constexpr std::array names{std::pair{E::token, "token"}, std::pair{E::word, "word"},
                                    std::pair{E::span, "span"}};
};

namespace tessera::train {

/// What is hidden of a text.
struct MaskedRecipe {
  static constexpr const char* kType = "masked_lm";
  double rate = 0.15;
  double mask = 0.8;
  double random = 0.1;
  MaskCount count = MaskCount::exact;
  MaskUnit unit = MaskUnit::token;
  std::optional<std::string> mask_token = {};
  std::optional<int64_t> mask_id = {};

  static constexpr auto fields() {
    using C = MaskedRecipe;
    using spec::field;
    return std::tuple{
        field("rate", &C::rate, "share of the tokens to predict", {.min = 0}),
        field("mask", &C::mask, "share of these replaced by the mask", {.min = 0}),
        field("random", &C::random,
              "share of these replaced by a random token; the rest stay unchanged", {.min = 0}),
        field("count", &C::count, "exact: the rate holds in every sample; bernoulli: on average"),
        field("unit", &C::unit,
              "unit of masking: a token, a word, or a span of words, 3.8 on average"),
        field("mask_token", &C::mask_token, "mask token of the tokenizer"),
        field("mask_id", &C::mask_id,
              "instead of mask_token: its id, which may exceed the tokenizer's", {.min = 0})};
  }
};

/// Uniform numbers in [0, 1): one for the count, and four for every token.
struct MaskDraws {
  double count = 0;
  std::vector<double> select, change, replace, span = {};
  static MaskDraws of(const RandomKey& key, int64_t tokens);
};

/// Whether each id of a tokenizer begins a word, by the mark that its tokens bear: WordPiece's ##
/// of those that do not, the space of byte-level BPE and SentencePiece, or a space itself. A space
/// belongs to the word behind it.
std::vector<bool> word_starts(const text::Tokenizer& tokenizer);

/// Words of a span, 1 to 10: P(k) is .2 .8^(k-1) over the sum of the ten.
int64_t span_words(double u);

struct Masking {
  MaskedRecipe how;
  int64_t mask_id = 0;
  std::vector<int64_t> ordinary;  // ids that are no special tokens, ascending: what is selected,
                                  // and what replaces
  std::vector<bool> starts = {};  // word_starts(), where words are hidden whole

  /// Selects tokens and changes them in `ids`; their own ids are what `targets` then asks for, -1
  /// elsewhere. Of c ordinary tokens exactly floor(rate * c + draw), at least 1 where there is one,
  /// those of the least draws; or each by its own draw. A word is drawn by its first token; one
  /// that is more than what is still to be hidden is passed over. Spans begin at words in the order
  /// of their draws, and end before what is hidden already, or is more. Tokens are changed each by
  /// its own draw, those of a span by that of its first. Documents begin at `begins`, ascending
  /// (the first token does in any case): no word goes on over that.
  void apply(std::span<int64_t> ids,
             std::span<int64_t> targets,
             const MaskDraws& draws,
             std::span<const int64_t> begins = {}) const;
};

}  // namespace tessera::train
