// Samples of labelled examples: a text, a pair, or a sentence, one per sample, in a new order in
// every epoch. Torch-free.
#pragma once

#include "tessera/base/sha256.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/data/dataset.h"
#include "tessera/train/objective/labels/label_objective.h"

namespace tessera::train {

/// A tokenized example.
struct LabelSample {
  std::vector<int64_t> ids;
  std::vector<int64_t> second;   // ids of the second document of two towers
  std::vector<int64_t> types;    // of tokens, if used
  std::vector<int64_t> targets;  // of tokens, for word labels; -1: none
  std::vector<double> label;     // PackedBatch::labels
  std::string group, candidate;  // of a Record with a layout
  std::shared_ptr<const StoredFeature> feature = nullptr;  // in place of ids, which are 0
};

/// Samples of labelled texts.
class LabelDataset : public Dataset {
 public:
  virtual const LabelSample& valid_sample(int64_t number) const = 0;
};

/// Every sample as a document of its own, or as two.
PackedBatch packed_samples(const std::vector<const LabelSample*>& samples);

/// Hashes the tokens of all samples, for Dataset::key().
void add_to_key(Sha256& key, const LabelSample& sample);

/// Number of token types of a spec's embedding.
int64_t token_types(const model::ModelSpec& spec);

/// Throws Error(input) for ids outside the spec's vocabulary.
void check_vocabulary(int64_t vocab, const LabelSample& sample, const std::string& where);

/// The examples of a recipe's files. All are read and tokenized before the first step; errors name
/// file and line.
std::unique_ptr<Dataset> open_labels(const DataPlan& plan,
                                     const LabelTask& task,
                                     const text::Tokenizer& tokenizer,
                                     const CancelToken* cancel);

}  // namespace tessera::train
