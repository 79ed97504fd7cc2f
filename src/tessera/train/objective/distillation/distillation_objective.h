// The objective "distillation": a teacher's outputs in addition to an inner objective. Torch-free.
#pragma once

#include "tessera/model/model_spec.h"
#include "tessera/train/objective/distillation/distillation_recipe.h"
#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

/// The teacher's input.
enum class TeacherReads {
  same,    // the student's input
  clean,   // a decoder teaching an encoder: the text without masks, whose tokens it predicts from
           // the ones before
  joined,  // a decoder teaching an encoder-decoder: source and target as one text
  answer,  // an encoder-decoder teaching one that sees targets whole: the target without masks,
           // whose tokens it predicts from the ones before
};

class DistillationConfig final : public ObjectiveConfig {
 public:
  DistillationConfig(DistillationKeys keys, ObjectivePtr inner)
      : keys_(std::move(keys)), inner_(std::move(inner)) {}
  std::string type() const override { return DistillationKeys::kType; }
  spec::Json dump() const override;
  void check(const ModelPlan& plan) const override;
  std::unique_ptr<Dataset> open(const DataPlan& plan,
                                const std::filesystem::path& cache,
                                const CancelToken* cancel) const override {
    return inner_->open(plan, cache, cancel);
  }
  std::vector<std::string> kinds() const override { return inner_->kinds(); }
  std::vector<std::string> reads() const override { return {"objective.teacher"}; }

  const DistillationKeys& keys() const { return keys_; }
  const ObjectivePtr& inner() const { return inner_; }
  bool has(TermOf of) const;
  /// True if the student's own forward pass is needed; false if only its mixers are trained on the
  /// teacher's inputs.
  bool runs_student() const;
  /// For a student and a teacher with these specs. Throws Error(spec) if they cannot be paired.
  TeacherReads teacher_reads(const model::ModelSpec& student,
                             const model::ModelSpec& teacher) const;
  std::vector<LayerPair> layers(const model::ModelSpec& student,
                                const model::ModelSpec& teacher) const;

 private:
  DistillationKeys keys_;
  ObjectivePtr inner_;
};

/// The branch of a layer that a term compares ("layers.3.mixer"); nullptr if there is none.
const model::BranchSpec* compared_branch(const model::ModelSpec& spec, int64_t layer);
std::string name_of_branch(const model::ModelSpec& spec,
                           int64_t layer,
                           const model::BranchSpec& branch);

std::vector<ObjectiveKind> distillation_kinds();

}  // namespace tessera::train
