// Evaluation: requests for the likelihood of targets, which an engine serves. `eval` and training
// differ in what they ask alone.
#pragma once

#include "tessera/infer/engine/engine.h"

namespace tessera::infer {

/// The requests of the next pass, which are read in one call of a model that has room for them;
/// none at the end. `before`: what became of those of the pass before.
using NextPass = std::function<std::vector<Request>(std::vector<Engine::Result>& before)>;

/// The scores of all passes together. Throws Error(cancelled), and what makes a request fail.
Score evaluate(const model::Model& model,
               const NextPass& next,
               const spec::KvOptions& kv = {},
               const CancelToken* cancel = nullptr);

struct EvalOptions {
  int64_t window = 1024;   // tokens per forward pass
  int64_t stride = 0;      // new targets per window after the first; 0 = window (no overlap)
  int64_t max_tokens = 0;  // of the text; 0 = all
  bool carry = false;      // every window goes on from the state of the one before; no stride
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
