// Evaluation: scores targets with an engine. The `eval` command and training use the same code with
// different requests.
#pragma once

#include "tessera/infer/engine/engine.h"

namespace tessera::infer {

/// The requests of the next pass, which are fed in one model call if they fit; none at the end.
/// `before`: results of the pass before.
using NextPass = std::function<std::vector<Request>(std::vector<Engine::Result>& before)>;

/// The sum of all scores. Throws Error(cancelled), and the error of a request that fails.
Score evaluate(const model::Model& model,
               const NextPass& next,
               const spec::KvOptions& kv = {},
               const CancelToken* cancel = nullptr);

struct EvalOptions {
  int64_t window = 1024;   // tokens per model call
  int64_t stride = 0;      // new targets per window after the first; 0 = window (no overlap)
  int64_t max_tokens = 0;  // tokens of the text to evaluate; 0 = all
  bool carry = false;  // every window continues from the state of the one before; excludes stride
  spec::KvOptions kv = {};
  const CancelToken* cancel = nullptr;
  std::function<void(int64_t done, int64_t total)> progress = {};
};

struct EvalResult {
  double nll = 0;  // mean negative log-likelihood per target, nats
  int64_t targets =
      0;  // number of targets: each token of the text except the first, and except prefix tokens
  std::vector<int64_t> target_ids;  // the target tokens
  int64_t windows = 0;
};

/// Negative log-likelihood of a text under a decoder, with windows of `window` tokens, `stride`
/// apart. Every token is a target once. Windows whose first tokens attend to each other (pattern
/// prefix) have targets only after these. With `carry`, windows do not overlap and see the state of
/// the windows before. Throws Error(input) for fewer than 2 tokens.
EvalResult evaluate(const model::Model& model,
                    const std::vector<int64_t>& ids,
                    const EvalOptions& options);

}  // namespace tessera::infer
