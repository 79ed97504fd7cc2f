// How long a text is, said by its source: the term of the objective "mask_predict" beside that of
// tokens, -ln p of the length's class, a mean over pairs. Classes: model::Model::target_lengths.
#pragma once

#include "tessera/train/data/packing.h"
#include "tessera/train/loop/evaluate.h"

namespace tessera::train {

inline constexpr const char* kLengthLoss = "length";

/// -ln p of each length [R], from logits [R, lengths]; class i is a text of i + 1 tokens.
Tensor length_nll(const Tensor& logits_RC, const std::vector<int64_t>& lengths);

/// Tokens of the texts of a batch.
std::vector<int64_t> lengths_of(const PackedBatch& packed);

/// Adds to `out` what a source holds out: losses "length", scores "length_accuracy".
void evaluate_lengths(const model::Model& model,
                      const Dataset& source,
                      const EvaluateOptions& options,
                      Evaluation& out);

}  // namespace tessera::train
