// Evaluates a model on the validation samples of an objective.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "tessera/infer/evaluation/estimate.h"
#include "tessera/model/model.h"
#include "tessera/train/data/dataset.h"

namespace tessera::infer {
class ResultLines;
}

namespace tessera::train {

struct Evaluation {
  double loss = 0;           // the objective's, mean nats per target
  double accuracy = 0;       // share of targets that are the most likely token; 0 if not applicable
  double bits_per_byte = 0;  // of the text, with the split's mean bytes per token; 0 for a task
  int64_t tokens = 0;        // number of targets
  std::map<std::string, double> losses = {};  // of each objective of a mixture, by name
  std::map<std::string, double> scores = {};  // other metrics, by name
  /// Of scores, if EvaluateOptions::interval_seed is set.
  std::map<std::string, infer::Estimate> intervals = {};
};

struct EvaluateOptions {
  int64_t batch = 1;    // samples per model call
  int64_t batches = 0;  // max. number of model calls, spread evenly over the samples; 0 = all
  /// Windows continue from the state of the one before, in `batch` parallel streams, of which
  /// `batches` takes the first windows. A document starts again after `carry_limit` tokens, 0 =
  /// never.
  bool carried = false;
  int64_t carry_limit = 0;
  const CancelToken* cancel = nullptr;
  /// Of labelled objectives: also the confidence intervals of the scores, with this seed of the
  /// bootstrap.
  std::optional<uint64_t> interval_seed = {};
  /// Of labelled objectives: stored logits of each model call, which are not computed again;
  /// nullptr = none.
  infer::ResultLines* results = nullptr;
  /// Of objectives whose targets are tokens: nats and targets of each pass, in order.
  std::function<void(double nats, int64_t targets)> on_pass = {};
};

/// Sample numbers of each model call over `samples` samples.
std::vector<std::vector<int64_t>> passes_of(int64_t samples, const EvaluateOptions& options);

/// For an objective with token targets (PackedBatch::targets): the evaluator of
/// infer/evaluation/evaluate.h on the validation samples, each packed document separately.
/// Encoders, which the engine does not serve, get a batch per call. `kinds`: names of the losses of
/// PackedBatch::kinds. Throws Error(cancelled) between calls.
Evaluation evaluate_tokens(const model::Model& model,
                           const Dataset& source,
                           const std::vector<std::string>& kinds,
                           const EvaluateOptions& options);

}  // namespace tessera::train
