// Roofline of a measurement: memory bandwidth (weights and state) or arithmetic.
#pragma once

#include "tessera/cli/cli.h"
#include "tessera/model/model.h"

namespace tessera::cli {

/// Measured limits of this machine for a model, on all threads.
struct Limits {
  double read_bytes_per_s = 0;  // main memory, beyond all caches
  double flops_per_s = 0;       // products of the model's largest matrix with many rows

  static Limits measure(const model::Model& model);
};

/// The products of one row of activations with the matrices of one kind: those of all layers with
/// one name.
struct MatrixRate {
  std::string name;                // "ffn.down"
  std::vector<std::string> types;  // "q4_k", "q6_k"
  int64_t bytes = 0;
  double read_bytes_per_s = 0;

  /// Every kind, in the order of the model: its matrices are multiplied one after another on all
  /// threads, so that caches hold no more of them than in decoding; the best of some rounds.
  static std::vector<MatrixRate> measure(const model::Model& model);
  /// {"name", "types", "bytes", "read_bytes_per_s", "read_share"}
  Json as_json(const Limits& limits) const;
};

/// Minimum cost of calls with that many tokens: every matrix in use, and the state, are read once.
struct Work {
  double bytes = 0, flops = 0;

  /// `tokens` per row for `rows` sequences of `context` tokens on average, whose states have
  /// `state_bytes` in total.
  static Work of_call(const model::Model& model,
                      int64_t rows,
                      int64_t tokens,
                      int64_t context,
                      int64_t state_bytes);

  /// {"read_bytes_per_s", "read_share", "flops_per_s", "flops_share", "limited_by": "reading",
  /// "arithmetic" or "neither"}: shares of the limits; the larger one limits the speed, neither if
  /// both are below 0.3.
  Json as_json(double seconds, const Limits& limits) const;
};

}  // namespace tessera::cli
