// How well a model predicts a text, or answers a task.
#pragma once

#include "tessera/model/model.h"
#include "tessera/train/source.h"

namespace tessera::train {

struct Evaluation {
  double loss = 0;           // mean nats per predicted token
  double accuracy = 0;       // share of them that are the most likely token
  double bits_per_byte = 0;  // of the text, at the split's mean of bytes per token; 0 for a task
  int64_t tokens = 0;        // predicted
};

struct EvaluateOptions {
  int64_t length = 0;   // of a split's windows, in tokens; every one starts without a past
  int64_t batch = 1;    // samples per forward pass
  int64_t batches = 0;  // at most so many passes, spread evenly over the samples; 0 = all
  const CancelToken* cancel = nullptr;
};

/// The samples a source holds out. Throws Error(cancelled) between passes.
Evaluation evaluate(const model::Model& model,
                    const Source& source,
                    const EvaluateOptions& options);

/// A split's windows in order, without gaps.
Evaluation evaluate(const model::Model& model,
                    const TokenSplit& split,
                    const EvaluateOptions& options);

/// Tensors of a packed batch: the model's input, and the targets [N].
std::pair<nn::Batch, Tensor> to_tensors(const PackedBatch& packed);

}  // namespace tessera::train
