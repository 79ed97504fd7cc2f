// The objective "replaced_token" (ELECTRA): detects replaced tokens. Torch-free.
#pragma once

#include <optional>
#include <string>

#include "tessera/train/objective/masked_lm/masking.h"

namespace tessera::train {

enum class SharedTables { embeddings, disentangled, none };

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::SharedTables> {
  using E = tessera::train::SharedTables;
  static constexpr std::array names{std::pair{E::embeddings, "embeddings"},
                                    std::pair{E::disentangled, "disentangled"},
                                    std::pair{E::none, "none"}};
};

namespace tessera::train {

/// Keys of the objective; the generator's spec, the key "generator", is separate.
struct ReplacedTokenRecipe {
  static constexpr const char* kType = "replaced_token";
  double rate = 0.15;
  double mask = 0.85;
  double random = 0;
  MaskCount count = MaskCount::exact;
  MaskUnit unit = MaskUnit::token;
  std::optional<std::string> mask_token = {};
  std::optional<int64_t> mask_id = {};
  SharedTables share = SharedTables::embeddings;
  double weight = 50;
  double generator_weight = 1;

  /// The masking of the generator's inputs.
  MaskedRecipe masked() const { return {rate, mask, random, count, unit, mask_token, mask_id}; }

  static constexpr auto fields() {
    using C = ReplacedTokenRecipe;
    using spec::field;
    return std::tuple{
        field("rate", &C::rate, "share of the tokens that the generator predicts",
              {.above = 0, .max = 1}),
        field("mask", &C::mask, "share of these replaced by the mask", {.min = 0}),
        field("random", &C::random,
              "share of those that become any token but a special one; the rest stay as they are",
              {.min = 0}),
        field("count", &C::count, "exact: the rate holds in every sample; bernoulli: on average"),
        field("unit", &C::unit,
              "what is hidden together: a token, a word, or a span of words, 3.8 on average"),
        field("mask_token", &C::mask_token, "the mask, a token of the tokenizer"),
        field("mask_id", &C::mask_id,
              "instead of mask_token: its id, which may exceed the tokenizer's", {.min = 0}),
        field(
            "share", &C::share,
            "embeddings: both models have one table of tokens, of positions and of types, where "
            "these are of one width; disentangled: those of the spec are the generator's, to which "
            "its loss gives no gradient, and differences that it learns; none: each its own"),
        field("weight", &C::weight, "of the loss of the tokens that were put there", {.min = 0}),
        field("generator_weight", &C::generator_weight, "of the generator's own loss", {.min = 0})};
  }
};

}  // namespace tessera::train
