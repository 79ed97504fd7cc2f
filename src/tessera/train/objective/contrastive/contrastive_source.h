// Texts with one that belongs to each, and some that do not, out of tables and JSON lines.
// Torch-free. A sample is a row of documents: a text, its positive, its negatives. Without
// positives it is the text twice.
//
//   {"text": "a dog runs", "positive": "an animal moves", "negatives": ["a dog sleeps"]}
//   {"text": "a dog runs", "positive": "an animal moves", "score": 3.8}    to evaluate on alone
#pragma once

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/data/label_data.h"
#include "tessera/train/data/dataset.h"
#include "tessera/train/objective/contrastive/contrastive_recipe.h"

namespace tessera::train {

/// The data of a recipe as examples: JSON lines where they are said to be, else tables by the ends
/// of their names. Throws Error(spec) for files that are neither.
LabelData examples_of(const DataRecipe& data);

class ContrastiveSource : public Dataset {
 public:
  /// Whether samples are a text twice.
  virtual bool unsupervised() const = 0;
  /// What people said of a sample to evaluate on, where they did: how alike its two texts are.
  virtual std::optional<double> score_of(int64_t valid_sample) const = 0;
};

/// The examples of a recipe's files. PackedBatch::items has the number of every piece's text: equal
/// texts have equal ones. Every line is read and tokenised before the first step: what is wrong
/// with one is said with its file and number. Texts longer than `train.length` lose their end.
std::unique_ptr<ContrastiveSource> open_contrastive(const Recipe& recipe,
                                                    const ContrastiveRecipe& how,
                                                    const text::Tokenizer& tokenizer,
                                                    const CancelToken* cancel);

}  // namespace tessera::train
