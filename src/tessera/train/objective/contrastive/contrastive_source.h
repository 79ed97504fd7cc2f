// Texts with a positive and optional negatives, from tables and JSON lines. Torch-free. A sample is
// a row of documents: a text, its positive, its negatives. Without positives it is the text twice.
//
//   {"text": "a dog runs", "positive": "an animal moves", "negatives": ["a dog sleeps"]}
//   {"text": "a dog runs", "positive": "an animal moves", "score": 3.8}   (validation only)
#pragma once

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/data/label_data.h"
#include "tessera/train/data/dataset.h"
#include "tessera/train/objective/contrastive/contrastive_recipe.h"

namespace tessera::train {

/// The data of a recipe as examples: JSON lines if the recipe sets that, otherwise tables by file
/// name. Throws Error(spec) for files that are neither.
LabelData examples_of(const TextData& data);

class ContrastiveSource : public Dataset {
 public:
  /// True if samples are a text twice (SimCSE).
  virtual bool unsupervised() const = 0;
  /// The human similarity score of a validation sample, if it has one.
  virtual std::optional<double> score_of(int64_t valid_sample) const = 0;
};

/// The examples of a recipe's files. PackedBatch::items has the text number of every document;
/// equal texts have equal numbers. Every line is read and tokenized before the first step; errors
/// name file and line. Texts are truncated to `train.length`.
std::unique_ptr<ContrastiveSource> open_contrastive(const DataPlan& plan,
                                                    const ContrastiveRecipe& how,
                                                    const text::Tokenizer& tokenizer,
                                                    const CancelToken* cancel);

}  // namespace tessera::train
