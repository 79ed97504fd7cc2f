// The objective "permutation": tokens of a text in a random order. Torch-free.
#pragma once

#include "tessera/train/objective/masked_lm/masking.h"

namespace tessera::train {

struct PermutationRecipe {
  static constexpr const char* kType = "permutation";
  double rate = 1.0 / 6;
  MaskCount count = MaskCount::exact;
  MaskUnit unit = MaskUnit::token;
  std::optional<std::string> mask_token = {};
  std::optional<int64_t> mask_id = {};

  /// The selection of targets; the text itself is not masked.
  MaskedRecipe chooses() const { return {rate, 0, 0, count, unit, mask_token, mask_id}; }

  static constexpr auto fields() {
    using C = PermutationRecipe;
    using spec::field;
    return std::tuple{
        field("rate", &C::rate, "share of the tokens to predict, the last of the order",
              {.above = 0, .max = 1}),
        field("count", &C::count, "exact: the rate holds in every sample; bernoulli: on average"),
        field("unit", &C::unit,
              "what is chosen together: a token, a word, or a span of words, 3.8 on average"),
        field("mask_token", &C::mask_token, "query token, a token of the tokenizer"),
        field("mask_id", &C::mask_id,
              "instead of mask_token: its id, which may exceed the tokenizer's", {.min = 0})};
  }
};

}  // namespace tessera::train
