// Perplexity by position: how well a model uses context, and text beyond its trained length.
#pragma once

#include <vector>

#include "tessera/infer/evaluation/estimate.h"
#include "tessera/model/model.h"
#include "tessera/spec/kv_type.h"

namespace tessera::infer {

/// Mean of nll[begin, end), by target position in a window: target 0 follows the first token.
struct PositionBucket {
  int64_t begin = 0, end = 0;
  Estimate nll;  // nats per target; interval by resampling windows
};

/// Buckets [0, 1), then [2^k, 2^{k+1}), of windows whose targets have nll[window][position]; the
/// last one ends with the longest window.
std::vector<PositionBucket> by_position(const std::vector<std::vector<double>>& nll,
                                        uint64_t seed = 0);

struct PositionOptions {
  int64_t length = 0;                           // trained length, tokens
  std::vector<int64_t> factors = {1, 2, 4, 8};  // windows of these multiples of it
  int64_t windows = 8;                          // of each length, from the beginning of the text on
  int64_t block = 64;                           // targets of the comparison by context
  uint64_t seed = 0;
  spec::KvOptions kv = {};
  const CancelToken* cancel = nullptr;
};

/// Windows of `factor` times the trained length.
struct LengthScore {
  int64_t factor = 1, length = 0, windows = 0;
  Estimate nll;       // over all targets
  Estimate last_nll;  // over the targets of the last trained length: of factor 1 all
};

/// The nll of the same targets after a context of this number of tokens.
struct ContextScore {
  int64_t context = 0;
  Estimate nll;
};

struct PositionReport {
  std::vector<PositionBucket> positions;  // of the longest windows
  std::vector<LengthScore> lengths;
  std::vector<ContextScore> contexts;
};

/// Windows are consecutive parts of the text without shared state. `contexts`: the last `block`
/// targets of each of the longest windows, with only the last 2^k tokens before the first of them
/// as context (and the targets before each one). Factors beyond the model's positions or the text
/// are left out. Throws Error(input) for a text of less than one window, Error(usage) for a model
/// without next-token prediction.
PositionReport evaluate_positions(const model::Model& model,
                                  const std::vector<int64_t>& ids,
                                  const PositionOptions& options);

}  // namespace tessera::infer
