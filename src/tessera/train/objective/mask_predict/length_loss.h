// Length prediction: the term of the objective "mask_predict" for the target length, -ln p of its
// class from the source, mean over pairs. Classes: model::Model::target_lengths.
#pragma once

#include "tessera/train/data/packing.h"
#include "tessera/train/loop/evaluate.h"

namespace tessera::train {

inline constexpr const char* kLengthLoss = "length";

/// -ln p of each length [R], from logits [R, lengths]; class i is length i + 1.
Tensor length_nll(const Tensor& logits_RC, const std::vector<int64_t>& lengths);

/// Target lengths of a batch, tokens.
std::vector<int64_t> lengths_of(const PackedBatch& packed);

/// Evaluates validation samples and adds loss "length" and score "length_accuracy" to `out`.
void evaluate_lengths(const model::Model& model,
                      const Dataset& source,
                      const EvaluateOptions& options,
                      Evaluation& out);

}  // namespace tessera::train
