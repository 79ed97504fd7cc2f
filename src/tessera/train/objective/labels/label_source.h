// Samples of labelled examples: a text or a pair, or a sentence, each whole and alone, read anew in
// every epoch in another order. Torch-free.
#pragma once

#include "tessera/base/sha256.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/train/data/dataset.h"
#include "tessera/train/objective/labels/label_objective.h"

namespace tessera::train {

/// An example as a model reads it.
struct LabelSample {
  std::vector<int64_t> ids;
  std::vector<int64_t> types;    // of tokens, where they are given
  std::vector<int64_t> targets;  // of tokens, where words have labels; -1: none
  std::vector<double> label;     // PackedBatch::labels
};

/// Every sample as a piece of its own.
PackedBatch packed_samples(const std::vector<const LabelSample*>& samples);

/// What the tokens of all samples come to, for Source::key().
void add_to_key(Sha256& key, const LabelSample& sample);

/// Number of token types of a spec's embedding.
int64_t token_types(const Recipe& recipe);

/// Throws Error(input) for ids that the spec has no vector for.
void check_vocabulary(const Recipe& recipe, const LabelSample& sample, const std::string& where);

/// The examples of a recipe's files. Every one is read and tokenised before the first step: what is
/// wrong with it is said with its file and line.
std::unique_ptr<Dataset> open_labels(const Recipe& recipe,
                                     const LabelTask& task,
                                     const text::Tokenizer& tokenizer,
                                     const CancelToken* cancel);

}  // namespace tessera::train
