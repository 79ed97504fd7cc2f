// Scores of generated examples: tokens with targets at some positions.
#pragma once

#include <functional>
#include <vector>

#include "tessera/infer/engine/request.h"
#include "tessera/infer/evaluation/estimate.h"

namespace tessera::infer {

/// targets[i] is predicted after ids[i]; -1 = none.
struct TargetedExample {
  std::vector<int64_t> ids, targets;
};

struct ExampleScores {
  int64_t examples = 0;
  Estimate exact_match;  // share of examples of which every target is the most likely token
  Estimate accuracy;     // share of targets that are, resampled by example
  double nll = 0;        // mean nats per target
};

/// Scores `examples` examples, `make(i)` is number i, in batches of about 4,096 tokens. `seed`: of
/// the bootstrap interval. Throws Error(cancelled).
ExampleScores score_examples(const model::Model& model,
                             int64_t examples,
                             const std::function<TargetedExample(int64_t i)>& make,
                             uint64_t seed,
                             const spec::KvOptions& kv = {},
                             const CancelToken* cancel = nullptr);

}  // namespace tessera::infer
