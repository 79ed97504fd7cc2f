// The objective "mask_predict" (CMLM): predicts masked tokens of a target, which the decoder sees
// whole (model::ModelSpec::mask), from its other tokens and the source, and the target length from
// the source. Torch-free.
//
// Of N tokens n are masked, n uniform in 1 .. N, each subset of n equally likely. Ghazvininejad,
// Levy, Liu, Zettlemoyer 2019, arXiv:1904.09324, sec. 2.
#pragma once

#include "tessera/train/data/packing.h"
#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

struct MaskPredictRecipe {
  static constexpr const char* kType = "mask_predict";
  double length_weight = 0.1;

  static constexpr auto fields() {
    return std::tuple{spec::field(
        "length_weight", &MaskPredictRecipe::length_weight,
        "weight of the length loss (mean over pairs), added to the token loss", {.min = 0})};
  }
};

std::vector<ObjectiveKind> mask_predict_kinds();

/// Masks the targets of `pairs`, row r with keys[r]. A `separator` at the end of a text is not one
/// of its tokens: the length gives its end.
PackedBatch mask_texts(const PackedBatch& pairs,
                       int64_t mask,
                       std::optional<int32_t> separator,
                       const std::vector<RandomKey>& keys);

}  // namespace tessera::train
