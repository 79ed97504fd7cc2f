// The objective "contrastive": embeddings of related texts. Torch-free.
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
  static constexpr std::array aliases{std::pair{E::cls, "first"}};
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
        field("temperature", &C::temperature, "temperature of the softmax; divides cosines",
              {.above = 0}),
        field("symmetric", &C::symmetric,
              "mean of both directions: texts to positives and positives to texts"),
        field("hard_weight", &C::hard_weight, "added to the logit of hard negatives", {.min = 0}),
        field("pooling", &C::pooling,
              "pooling of the embedding: mean, first token (cls), max over tokens, last token, or "
              "the "
              "spec's pooler"),
        field(
            "dims", &C::dims,
            "Matryoshka dimensions: a loss for each prefix of the embedding, averaged with that of "
            "the whole"),
        field(
            "positive_key", &C::positive_key,
            "key or column of the positive; without any the text itself under another dropout mask "
            "(SimCSE)"),
        field("negatives_key", &C::negatives_key,
              "key or column of the hard negative, or list of them")};
  }
};

}  // namespace tessera::train
