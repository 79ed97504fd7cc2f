// Masking for masked language modeling: of tokens (Devlin et al. 2019, arXiv:1810.04805, sec. 3.1),
// whole words (the same, of 2019-05-31), or spans of words (Joshi et al. 2020, arXiv:1907.10529,
// sec. 3.1). A pure function of tokens and random numbers. Torch-free.
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
  exact,      // exactly the rate in every sample
  bernoulli,  // every token independently
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

/// Masking keys of a recipe.
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
        field("rate", &C::rate, "share of the tokens to predict", {.above = 0, .max = 1}),
        field("mask", &C::mask, "share of these replaced by the mask", {.min = 0, .max = 1}),
        field("random", &C::random,
              "share of these replaced by a random token; the rest stay unchanged",
              {.min = 0, .max = 1}),
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

/// For each id of a tokenizer, whether it begins a word: WordPiece tokens without ##, tokens with
/// the space of byte-level BPE or SentencePiece, or a space itself, which belongs to the word after
/// it.
std::vector<bool> word_starts(const text::Tokenizer& tokenizer);

/// Length of a span in words, 1 to 10: P(k) is .2 .8^(k-1) over the sum of the ten.
int64_t span_words(double u);

struct Masking {
  MaskedRecipe how;
  int64_t mask_id = 0;
  std::vector<int64_t> ordinary;  // ids without special tokens, ascending: candidates for masking
                                  // and for random replacement
  std::vector<bool> starts = {};  // word_starts(), if whole words are masked

  /// Masks tokens in `ids`; `targets` are their original ids, -1 elsewhere. Of c ordinary tokens
  /// exactly floor(rate * c + draw) are selected, at least 1 if there is one, those with the
  /// smallest draws; or each by its own draw. A word is selected by the draw of its first token;
  /// one longer than the rest of the count is skipped. Spans begin at words in the order of their
  /// draws, and end before masked tokens or the end of the count. Each token is replaced by its own
  /// draw, the tokens of a span by that of the first. Documents begin at `begins`, ascending (the
  /// first token always does); words do not cross these.
  void apply(std::span<int64_t> ids,
             std::span<int64_t> targets,
             const MaskDraws& draws,
             std::span<const int64_t> begins = {}) const;
};

}  // namespace tessera::train
