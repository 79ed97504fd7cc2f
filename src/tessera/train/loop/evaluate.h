// How well a model answers what an objective holds out.
#pragma once

#include <map>
#include <string>

#include "tessera/model/model.h"
#include "tessera/train/data/dataset.h"

namespace tessera::train {

struct Evaluation {
  double loss = 0;           // the objective's: mean nats per predicted token
  double accuracy = 0;       // share of them that are the most likely token; 0 where none is chosen
  double bits_per_byte = 0;  // of the text, at the split's mean of bytes per token; 0 for a task
  int64_t tokens = 0;        // predicted
  std::map<std::string, double> losses = {};  // of each that a mixture draws, by its name
  std::map<std::string, double> scores = {};  // other measures, by their names
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

/// Samples of each pass over `samples`, by number.
std::vector<std::vector<int64_t>> passes_of(int64_t samples, const EvaluateOptions& options);

/// Of an objective whose targets are tokens (PackedBatch::targets): the evaluator of
/// infer/evaluation/evaluate.h on what the source holds out, each piece a document of its own. An
/// encoder, which no engine serves, reads a batch in one pass. `kinds`: names of the losses of
/// PackedBatch::kinds. Throws Error(cancelled) between passes.
Evaluation evaluate_tokens(const model::Model& model,
                           const Dataset& source,
                           const std::vector<std::string>& kinds,
                           const EvaluateOptions& options);

}  // namespace tessera::train
