// What limits a measured speed: reading weights and state, or arithmetic.
#pragma once

#include "tessera/cli/cli.h"
#include "tessera/model/model.h"

namespace tessera::cli {

/// What this machine does at most with a model, measured now on all threads.
struct Limits {
  double read_bytes_per_s = 0;  // of memory that no cache holds
  double flops_per_s = 0;       // products of the model's largest matrix with many rows

  static Limits measure(const model::Model& model);
};

/// What calls of so many tokens cost at least: every matrix that they use is read once, and so is
/// the state.
struct Work {
  double bytes = 0, flops = 0;

  /// `tokens` of each of `rows` texts that have `context` tokens in the middle of it, and whose
  /// states hold `state_bytes` together.
  static Work of_call(const model::Model& model,
                      int64_t rows,
                      int64_t tokens,
                      int64_t context,
                      int64_t state_bytes);

  /// {"read_bytes_per_s", "read_share", "flops_per_s", "flops_share", "limited_by": "reading",
  /// "arithmetic" or "neither"}: shares of the limits, the larger of which is what speed is limited
  /// by; neither is where both shares are below 0.3.
  Json said(double seconds, const Limits& limits) const;
};

}  // namespace tessera::cli
