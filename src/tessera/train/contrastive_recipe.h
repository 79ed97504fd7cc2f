// The objective "contrastive": texts whose vectors are to lie near one another. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "tessera/spec/fields.h"

namespace tessera::train {

enum class TextVector { mean, cls, max, last, pooler };

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::TextVector> {
  using E = tessera::train::TextVector;
  static constexpr std::array names{std::pair{E::mean, "mean"}, std::pair{E::cls, "cls"},
                                    std::pair{E::max, "max"}, std::pair{E::last, "last"},
                                    std::pair{E::pooler, "pooler"}};
};

namespace tessera::train {

struct ContrastiveRecipe {
  static constexpr const char* kType = "contrastive";
  double temperature = 0.05;
  bool symmetric = false;
  double hard_weight = 0;
  TextVector pooling = TextVector::mean;
  std::vector<int64_t> dims = {};
  std::string positive_key = "positive";
  std::string negatives_key = "negatives";

  static constexpr auto fields() {
    using C = ContrastiveRecipe;
    using spec::field;
    return std::tuple{
        field("temperature", &C::temperature, "what cosines are divided by", {.min = 0}),
        field("symmetric", &C::symmetric,
              "whether positives look for their texts too: the mean of both losses"),
        field("hard_weight", &C::hard_weight, "added to the logit of a text's own negatives",
              {.min = 0}),
        field("pooling", &C::pooling,
              "the vector of a text: the mean of its tokens, the first (cls), the largest value of "
              "each channel (max), the last one, or what the spec's pooler makes"),
        field("dims", &C::dims,
              "first channels that are to serve alone too, each a loss of its own; the mean of "
              "these and of the whole vector's (Matryoshka)"),
        field("positive_key", &C::positive_key,
              "key or column of the text that belongs to it; where no line has one the text "
              "itself, with other dropout"),
        field("negatives_key", &C::negatives_key, "of a text, or a list of them, that does not")};
  }
};

}  // namespace tessera::train
