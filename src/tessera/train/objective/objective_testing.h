// Shared by tests of evaluation.
#pragma once

#include "tessera/train/objective/objective.h"

namespace tessera::train {

/// The windows of a split in order, without gaps.
class SplitSource final : public Dataset {
 public:
  SplitSource(const TokenSplit& split, int64_t length)
      : split_(split), windows_(windows_in_order(split.tokens(), length)) {}
  PackedBatch train(int64_t, int64_t, std::vector<int64_t>&) const override { return {}; }
  int64_t valid_samples() const override { return static_cast<int64_t>(windows_.size()); }
  PackedBatch valid(const std::vector<int64_t>& samples) const override {
    return pack(split_, chosen(windows_, samples));
  }
  double tokens_per_byte() const override {
    return static_cast<double>(split_.tokens()) / static_cast<double>(split_.text_bytes());
  }
  const std::string& key() const override { return key_; }

 private:
  const TokenSplit& split_;
  std::vector<Window> windows_;
  std::string key_;
};

inline Evaluation evaluate_split(const model::Model& model,
                                 const TokenSplit& split,
                                 int64_t length,
                                 const EvaluateOptions& options) {
  Recipe recipe;
  recipe.spec = model.spec();
  return token_objective(recipe.data_plan(), *recipe.objective,
                         std::make_unique<SplitSource>(split, length))
      ->evaluate(model, options);
}

}  // namespace tessera::train
