// How well a model answers what an objective holds out: the evaluator of infer/evaluate.h on the
// samples of a source.
#pragma once

#include "tessera/train/objective.h"

namespace tessera::train {

struct Evaluation {
  double loss = 0;           // mean nats per predicted token
  double accuracy = 0;       // share of them that are the most likely token
  double bits_per_byte = 0;  // of the text, at the split's mean of bytes per token; 0 for a task
  int64_t tokens = 0;        // predicted
  std::map<std::string, double> losses = {};  // of each that a mixture draws, by its name
};

struct EvaluateOptions {
  int64_t batch = 1;    // samples per forward pass
  int64_t batches = 0;  // at most so many passes, spread evenly over the samples; 0 = all
  /// Windows go on from the state of the one before, in `batch` streams side by side, of which
  /// `batches` takes the first windows. A document begins anew after `carry_limit` tokens, 0 =
  /// never.
  bool carried = false;
  int64_t carry_limit = 0;
  const CancelToken* cancel = nullptr;
};

/// The samples that the objective holds out. An encoder, which no engine serves, reads a batch in
/// one pass. Throws Error(cancelled) between passes.
Evaluation evaluate(const model::Model& model,
                    const Objective& objective,
                    const EvaluateOptions& options);

}  // namespace tessera::train
