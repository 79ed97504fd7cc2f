// Scores of generated examples: tokens with targets at some positions.
#pragma once

#include <functional>
#include <vector>

#include "tessera/infer/engine/request.h"
#include "tessera/infer/evaluation/estimate.h"
#include "tessera/infer/evaluation/result_lines.h"

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

struct ExampleOptions {
  uint64_t seed = 0;  // of the bootstrap interval
  spec::KvOptions kv = {};
  const CancelToken* cancel = nullptr;
  /// Stored results of each example ("nats", "hits", "targets"), the first of which has number
  /// `first` in them; nullptr = none.
  ResultLines* results = nullptr;
  int64_t first = 0;
};

/// Scores `examples` examples, `make(i)` is number i, in batches of about 4,096 tokens. Those that
/// `options.results` has are not computed again. Throws Error(cancelled), and Error(file) for
/// stored results of another kind.
ExampleScores score_examples(const model::Model& model,
                             int64_t examples,
                             const std::function<TargetedExample(int64_t i)>& make,
                             const ExampleOptions& options = {});

}  // namespace tessera::infer
