// Evaluates a model on a file of examples: labelled texts or words, questions, pairs,
// conversations, preferences, similarity scores. Reading and metrics are those of validation during
// fine-tuning on such a file (finetune.h).
#pragma once

#include <map>

#include "tessera/convert/checkpoint.h"
#include "tessera/ops/tensor.h"
#include "tessera/train/loop/evaluate.h"
#include "tessera/train/recipe/finetune.h"

namespace tessera::train {

struct DataEvaluationOptions {
  FinetuneOptions data;  // model, files, columns, task, format, length, batch
  convert::LoadOptions loading = {};
  std::vector<std::string> adapters;  // adapters of the model
  at::Device device = at::kCPU;       // of the model and its reference
  std::string reference;  // of preferences: the reference model of rewards; "" = the model without
                          // its adapters, or the one that its run was initialized from
  std::filesystem::path cache;  // cache for tokenized files
  uint64_t seed = 0;            // of bootstrap intervals
  std::filesystem::path out;    // of labels: stored logits, from which an interrupted evaluation
                                // continues; "" = none
};

struct DataEvaluation {
  std::string task;
  std::string benchmark;          // its name, or ""
  std::vector<std::string> said;  // detected settings and skipped examples, a line each
  int64_t examples = 0;           // evaluated examples
  Evaluation result = {};         // for similarities: metrics only
  /// Of ListOps: accuracy of the most frequent class, and of the most frequent one of the root
  /// operator.
  std::map<std::string, double> baselines = {};
};

/// With labels and similarities, scores have confidence intervals; of a benchmark, the scores that
/// it reports, and if there are several, "mean".
/// Throws Error(usage) if the model has no head for such examples or `out` has no meaning for them,
/// and the errors of reading them.
DataEvaluation evaluate_data(const DataEvaluationOptions& options);

}  // namespace tessera::train
