// Learning from another model (distillation_recipe.h): one forward pass of the teacher, frozen,
// without dropout and in its storage types, beside every one of the student. Logits of both exist
// for a chunk of tokens at a time. Where widths differ a learned map, which no model keeps, takes
// the student's hidden states to the teacher's (FitNets, arXiv:1412.6550).
#pragma once

#include "tessera/train/objective/distillation/distillation_recipe.h"
#include "tessera/train/objective/objective.h"

namespace tessera::train {

/// The objective of a recipe whose type that is. Throws what loading the teacher throws.
std::unique_ptr<Objective> distillation_objective(const Recipe& recipe,
                                                  std::unique_ptr<Dataset> source,
                                                  const ObjectiveOptions& options);

/// A batch as a teacher reads it, and the rows of its hidden states that foretell what the batch's
/// tokens ask, -1 = none.
struct TeacherBatch {
  PackedBatch packed;
  std::vector<int64_t> rows;
};
/// Without what is hidden in it: a row's answer comes from the token before.
TeacherBatch clean_batch(const PackedBatch& packed);
/// Texts that a student sees whole, without what is masked in them and from `start` on: a row's
/// answer comes from the rows before.
PackedBatch answer_batch(const PackedBatch& packed, int64_t start);
/// Sources and answers as one text each; `given`: whose source is its prefix (Piece::prefix).
TeacherBatch joined_batch(const PackedBatch& packed, bool given);

}  // namespace tessera::train
