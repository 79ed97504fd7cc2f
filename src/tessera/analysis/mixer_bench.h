// Measures what one layer costs as its documents grow: time and peak memory of a forward pass and
// of one with its backward pass, and of a decode step after few and after many tokens.
#pragma once

#include <functional>

#include "tessera/analysis/cost.h"
#include "tessera/base/cancel.h"

namespace tessera::analysis {

struct MixerBenchOptions {
  int64_t width = 128;                                               // d_model
  std::vector<int64_t> lengths{256, 1024, 2048, 4096, 8192, 16384};  // ascending
  /// When positive, a length is that of a batch of documents of about this many tokens: every
  /// mechanism has to be linear in it. The decode step is left out.
  int64_t document = 0;
  bool forward = true, backward = true;
  bool step = true;  // with the forward pass, where the layer has a state
  int repeats = 3;
  int64_t fit_from = 1024;  // the step is compared from the first length at or above it
  /// Longer documents are left out once a call would take more, by the length before and the claim.
  double limit = 1;                         // seconds
  int64_t memory_limit = int64_t{4} << 30;  // bytes
  const CancelToken* cancel = nullptr;
  /// Called before every length with what is measured next.
  std::function<void(const std::string&)> progress;
};

/// The first call of every length counts its memory and warms the caches (a long one is timed,
/// too); then all lengths are timed in turn, `repeats` times, and the medians taken; where the
/// claim of time does not hold, up to twice more, and the least median counts. Counts the memory of
/// all tensors from now on (ops::count_tensor_memory). Throws Error(spec) where the mechanism's
/// example does not fit.
Cost measure_cost(const spec::Mechanism& mechanism, const MixerBenchOptions& options);

/// Times the curves and the step whose claim of time does not hold once more, over the same lengths
/// and as above, and pools. Helps where it comes long enough after the first measurement for the
/// machine to be in another mood; a cost that truly grows faster keeps failing.
void measure_again(Cost& cost, const MixerBenchOptions& options);

}  // namespace tessera::analysis
