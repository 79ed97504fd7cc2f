// How well a model predicts a text.
#pragma once

#include "tessera/model/model.h"
#include "tessera/train/packing.h"

namespace tessera::train {

struct Evaluation {
  double loss = 0;           // mean nats per predicted token
  double bits_per_byte = 0;  // of the text, at the split's mean of bytes per token
  int64_t tokens = 0;        // predicted
};

struct EvaluateOptions {
  int64_t length = 0;   // tokens per window
  int64_t batch = 1;    // windows per forward pass
  int64_t batches = 0;  // at most so many passes, spread evenly over the split; 0 = all
  /// Windows go on from the state of the one before, in `batch` streams side by side, of which
  /// `batches` takes the first windows. A document begins anew after `carry_limit` tokens, 0 =
  /// never.
  bool carried = false;
  int64_t carry_limit = 0;
  const CancelToken* cancel = nullptr;
};

/// Windows in order, without gaps; beside an encoder, the split's pairs in order. Throws
/// Error(cancelled) between passes.
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
