// The objective "distillation": another model's answers beside an objective's own. Torch-free.
#pragma once

#include "tessera/model/model_spec.h"
#include "tessera/train/objective/distillation/distillation_recipe.h"
#include "tessera/train/objective/objective_config.h"

namespace tessera::train {

/// How the teacher reads what the student reads.
enum class TeacherReads {
  same,    // the same
  clean,   // a decoder beside an encoder: the text without what is hidden in it, whose tokens it
           // foretells from the ones before
  joined,  // a decoder beside an encoder_decoder: source and answer as one text
  answer,  // an encoder_decoder beside one that sees targets whole: the answer without masks, whose
           // tokens it foretells from the ones before
};

class DistillationConfig final : public ObjectiveConfig {
 public:
  DistillationConfig(DistillationKeys keys, ObjectivePtr inner)
      : keys_(std::move(keys)), inner_(std::move(inner)) {}
  std::string type() const override { return DistillationKeys::kType; }
  spec::Json dump() const override;
  void check(const Recipe& recipe) const override;
  std::unique_ptr<Dataset> open(const Recipe& recipe,
                                const std::filesystem::path& cache,
                                const CancelToken* cancel) const override {
    return inner_->open(recipe, cache, cancel);
  }
  std::vector<std::string> kinds() const override { return inner_->kinds(); }
  std::vector<std::string> reads() const override { return {"objective.teacher"}; }

  const DistillationKeys& keys() const { return keys_; }
  const ObjectivePtr& inner() const { return inner_; }
  bool has(TermOf of) const;
  /// Whether anything is learned from the student's own pass: else from what its mixers make of
  /// the teacher's inputs alone.
  bool runs_student() const;
  /// Of a student and a teacher with these specs. Throws Error(spec) where there is no such pair.
  TeacherReads teacher_reads(const model::ModelSpec& student,
                             const model::ModelSpec& teacher) const;
  std::vector<LayerPair> layers(const model::ModelSpec& student,
                                const model::ModelSpec& teacher) const;

 private:
  DistillationKeys keys_;
  ObjectivePtr inner_;
};

/// Where in a layer the branch is that a term compares ("layers.3.mixer"); nullptr: none there.
const model::BranchSpec* compared_branch(const model::ModelSpec& spec, int64_t layer);
std::string name_of_branch(const model::ModelSpec& spec,
                           int64_t layer,
                           const model::BranchSpec& branch);

ObjectiveKind distillation_kind();

}  // namespace tessera::train
