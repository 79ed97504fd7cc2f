// Evaluation: passes of a model over given tokens, each asked for its targets. `eval` and training
// differ in the passes alone.
#pragma once

#include "tessera/infer/score.h"
#include "tessera/model/model.h"

namespace tessera::infer {

/// What one forward pass reads, and what it is asked.
struct EvalPass {
  nn::Batch batch;
  Tensor targets_N;                       // int64, -1: none
  std::optional<nn::Batch> sources = {};  // what an encoder reads first
  model::State* state = nullptr;          // which the pass goes on from
};

/// Computes passes until `next` gives none; it is called when the one before is done. Throws
/// Error(cancelled) between them.
Score evaluate(const model::Model& model,
               const std::function<std::optional<EvalPass>()>& next,
               const CancelToken* cancel = nullptr);

struct EvalOptions {
  int64_t window = 1024;   // tokens per forward pass
  int64_t stride = 0;      // new targets per window after the first; 0 = window (no overlap)
  int64_t max_tokens = 0;  // of the text; 0 = all
  bool carry = false;      // every window goes on from the state of the one before; no stride
  /// With another type than f32 every window goes through a state that keeps keys and values so.
  spec::KvOptions kv = {};
  const CancelToken* cancel = nullptr;
  std::function<void(int64_t done, int64_t total)> progress = {};
};

struct EvalResult {
  double nll = 0;       // mean negative log-likelihood per target, nats
  int64_t targets = 0;  // each token but the first of the text is one once, unless it is seen
  std::vector<int64_t> target_ids;  // those tokens
  int64_t windows = 0;
};

/// The likelihood of a text under a decoder: windows of `window` tokens, `stride` apart; within a
/// window only targets not yet counted count, and of a window whose first tokens see each other
/// (pattern prefix) only what follows these. With `carry`, windows lie side by side and all of them
/// see what the model's state holds. Throws Error(input) for fewer than 2 tokens.
EvalResult evaluate(const model::Model& model,
                    const std::vector<int64_t>& ids,
                    const EvalOptions& options);

}  // namespace tessera::infer
