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
  int64_t length = 0;   // of a split's windows, in tokens
  int64_t batch = 1;    // windows per forward pass
  int64_t batches = 0;  // at most so many passes, spread evenly over the split; 0 = all
  /// Windows go on from the state of the one before, in `batch` streams side by side, of which
  /// `batches` takes the first windows. A document begins anew after `carry_limit` tokens, 0 =
  /// never.
  bool carried = false;
  int64_t carry_limit = 0;
  const CancelToken* cancel = nullptr;
};

/// The samples that a source holds out. Throws Error(cancelled) between passes.
Evaluation evaluate(const model::Model& model,
                    const Source& source,
                    const EvaluateOptions& options);

/// A split's windows in order, without gaps.
Evaluation evaluate(const model::Model& model,
                    const TokenSplit& split,
                    const EvaluateOptions& options);

/// Tensors of a packed batch: the model's input, and the targets [N].
std::pair<nn::Batch, Tensor> to_tensors(const PackedBatch& packed);

/// Hidden states of a packed batch, its sources read first where it has some.
Tensor hidden_of(const model::Model& model,
                 const PackedBatch& packed,
                 const nn::Batch& batch,
                 model::ForwardOptions options);

}  // namespace tessera::train
