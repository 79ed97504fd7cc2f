// How well a model does on a file of examples: labelled texts or words, questions, pairs,
// conversations, preferences, texts, pairs with a similarity. The examples are read, and the scores
// are those of what is held out, as fine-tuning on such a file has them (finetune.h).
#pragma once

#include "tessera/convert/checkpoint.h"
#include "tessera/train/loop/evaluate.h"
#include "tessera/train/recipe/finetune.h"

namespace tessera::train {

struct DataEvaluationOptions {
  FinetuneOptions data;  // model, files, columns, task, format, length, batch
  convert::LoadOptions loading = {};
  std::vector<std::string> adapters;  // beside the model
  std::string reference;  // of preferences: the model that rewards are measured against; "" = the
                          // model without its adapters, or the one that its run began from
  std::filesystem::path cache;  // where tokens of files may be kept
};

struct DataEvaluation {
  std::string task;
  std::vector<std::string> said;  // what was recognised and what was left out, a line each
  int64_t examples = 0;           // that were measured
  Evaluation result;              // of a similarity scores alone
};

/// Throws Error(usage) where the model has no head for such examples, and what reading them throws.
DataEvaluation evaluate_data(const DataEvaluationOptions& options);

}  // namespace tessera::train
