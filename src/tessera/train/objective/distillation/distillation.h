// Knowledge distillation (distillation_recipe.h): one forward pass of the frozen teacher, without
// dropout and in its storage types, for every one of the student. Logits of both exist for one
// chunk of tokens at a time. If widths differ, a trained projection that is not saved with the
// model maps the student's hidden states to the teacher's (FitNets, arXiv:1412.6550).
#pragma once

#include "tessera/train/objective/distillation/distillation_recipe.h"
#include "tessera/train/objective/objective.h"

namespace tessera::train {

/// Creates the objective of a recipe of that type. Throws the errors of loading the teacher.
std::unique_ptr<Objective> distillation_objective(const ModelPlan& plan,
                                                  const ObjectivePtr& objective,
                                                  std::unique_ptr<Dataset> source,
                                                  const ObjectiveOptions& options);

/// A batch in the teacher's layout, and the rows of its hidden states that predict the batch's
/// targets, -1 = none.
struct TeacherBatch {
  PackedBatch packed;
  std::vector<int64_t> rows;
};
/// Without masks: a row's target is predicted from the token before it.
TeacherBatch clean_batch(const PackedBatch& packed);
/// For students that see the whole target text: the text without masks from `start` on, where a
/// row's target is predicted from the rows before it.
PackedBatch answer_batch(const PackedBatch& packed, int64_t start);
/// Sources and targets as one text each; `given`: with the source as prefix
/// (PackedDocument::prefix).
TeacherBatch joined_batch(const PackedBatch& packed, bool given);

}  // namespace tessera::train
